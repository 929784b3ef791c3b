//! The README as its parts: sections with fenced blocks and tables.

/// What stands below one `##` heading.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) title: String,
    pub(crate) blocks: Vec<Block>,
    /// The rows of its tables, with their line.
    pub(crate) rows: Vec<(usize, Vec<String>)>,
}

/// One fenced block.
#[derive(Debug)]
pub(crate) struct Block {
    /// The line of its fence, from 1.
    pub(crate) line: usize,
    /// The first word of the fence.
    pub(crate) language: String,
    /// The rest of the fence: the file that the block is.
    pub(crate) file: String,
    pub(crate) text: String,
}

/// The sections in their order.
pub(crate) fn sections(page: &str) -> Vec<Section> {
    let mut sections = vec![section("")];
    let mut open: Option<Block> = None;
    for (at, line) in page.lines().enumerate() {
        let now = sections.last_mut().unwrap();
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some(_)) => now.blocks.extend(open.take()),
            (Some(block), None) => block.text.extend([line, "\n"]),
            (None, Some(info)) => {
                let (language, file) = info.split_once(' ').unwrap_or((info, ""));
                let (language, file) = (language.to_owned(), file.to_owned());
                open = Some(Block { line: at + 1, language, file, text: String::new() });
            }
            (None, None) => {
                assert!(!line.starts_with("    "), "line {}: an indented block is run by no test", at + 1);
                if let Some(title) = line.strip_prefix("## ") {
                    sections.push(section(title));
                } else if line.starts_with('|') {
                    now.rows.push((at + 1, cells(line)));
                }
            }
        }
    }
    assert!(open.is_none(), "a block has no end: {open:?}");
    sections
}

fn section(title: &str) -> Section {
    Section { title: title.to_owned(), blocks: Vec::new(), rows: Vec::new() }
}

/// The cells of a table's row, their code without its marks.
fn cells(row: &str) -> Vec<String> {
    let row = row.replace("\\|", "\0");
    let cells = row.trim_matches('|').split('|');
    cells.map(|cell| cell.trim().trim_matches('`').replace('\0', "|")).collect()
}

/// The code within the text, outside of blocks, with its line.
pub(crate) fn inline_code(page: &str) -> Vec<(usize, String)> {
    let mut is_block = false;
    let mut found = Vec::new();
    for (at, line) in page.lines().enumerate() {
        if line.starts_with("```") {
            is_block = !is_block;
        } else if !is_block {
            let line = line.replace("\\|", "|");
            found.extend(line.split('`').skip(1).step_by(2).map(|code| (at + 1, code.to_owned())));
        }
    }
    found
}
