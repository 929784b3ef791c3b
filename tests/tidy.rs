//! The house rules: which file may use which, and what nobody may write.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};

/// The layers, highest first. A file uses only what stands below its own line; the lowest line of a path's beginning
/// counts (`store/redis/url.rs` is `store/redis`). `store.rs` opens stores, and that is the one way up.
const LAYERS: &[&str] = &[
    "main",
    "lib",
    "command",
    "run",
    "report",
    "settings",
    "cli",
    "nest",
    "keeper",
    "child",
    "signal",
    "store/local",
    "store/redis",
    "lease",
    "store",
    "claim",
    "error",
    "exit",
    "clock",
    "timing",
    "text",
    "sys",
];

/// The most lines of code in a file, its comments, blank lines and tests not counted.
const MOST_LINES: usize = 400;

struct Source {
    /// Its path below the package.
    path: String,
    text: String,
}

impl Source {
    /// What stands before the unit tests.
    fn code(&self) -> &str {
        self.text.split("#[cfg(test)]").next().unwrap_or_default()
    }

    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }

    /// Its name below `src`, without the ending.
    fn module(&self) -> Option<&str> {
        self.path.strip_prefix("src/")?.strip_suffix(".rs")
    }

    fn is_tests(&self) -> bool {
        self.path.ends_with("tests.rs")
    }
}

fn sources(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut found, mut folders) = (Vec::new(), vec![root.join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push(Source { path: path.strip_prefix(root).unwrap().to_str().unwrap().to_owned(), text });
            }
        }
    }
    assert!(!found.is_empty());
    found
}

/// The rules' own examples are not held to them.
fn all() -> Vec<Source> {
    let tests = sources("tests").into_iter().filter(|source| source.path != "tests/tidy.rs");
    sources("src").into_iter().chain(tests).collect()
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// The layer of a module such as `store/redis/url`.
fn layer(module: &str) -> Option<usize> {
    let is_in = |layer: &str| module == layer || module.strip_prefix(layer).is_some_and(|rest| rest.starts_with('/'));
    LAYERS.iter().enumerate().filter(|(_, layer)| is_in(layer)).max_by_key(|(_, layer)| layer.len()).map(|(at, _)| at)
}

/// The modules that the code names from the crate's root: `crate::a::b` and `use crate::{a::b, c}`.
fn used(code: &str) -> Vec<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    let plain: String = code.lines().filter(|line| !is_comment(line)).collect::<Vec<_>>().join("\n");
    for (at, _) in plain.match_indices("crate::") {
        let rest = &plain[at + "crate::".len()..];
        if let Some(list) = rest.strip_prefix('{') {
            let mut depth = 0;
            let end = list.find(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                depth < 0
            });
            let list = &list[..end.unwrap_or(list.len())];
            let mut depth = 0;
            let parts = list.split(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                depth == 0 && c == ','
            });
            found.extend(parts.map(|part| part.trim().to_owned()));
        } else {
            found.push(rest.to_owned());
        }
    }
    let path = |text: &String| text.chars().take_while(|c| is_word(*c)).collect::<String>().replace("::", "/");
    found.iter().map(path).filter(|path| !path.is_empty()).collect()
}

#[test]
fn dependencies_point_down() {
    let mut wrong = Vec::new();
    for source in sources("src").iter().filter(|source| !source.is_tests()) {
        let module = source.module().unwrap();
        let own = layer(module).unwrap_or_else(|| panic!("{} stands in no layer; add it to LAYERS", source.path));
        for name in used(source.code()) {
            match layer(&name) {
                Some(other) if other >= own => {}
                Some(other) => wrong.push(format!("{} uses {}, which stands above it", source.path, LAYERS[other])),
                None => wrong.push(format!("{} uses {name}, which stands in no layer", source.path)),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_check_of_layers_sees_every_form() {
    let code = "use crate::store::{Key, redis};\nuse crate::{exit, claim::{ClaimId, Entry}, sys};\n\
                fn f() { crate::run::run() }\n// crate::comment\n";
    let found = used(code);
    let found: Vec<_> = found.iter().map(|name| layer(name).map(|at| LAYERS[at])).collect();
    assert_eq!(found, [Some("store"), Some("exit"), Some("claim"), Some("sys"), Some("run")]);
    assert_eq!(layer("store/redis/url").map(|at| LAYERS[at]), Some("store/redis"));
    assert_eq!(layer("nowhere"), None);
}

#[test]
fn the_map_names_every_file() {
    let map = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    for source in sources("src").iter().filter(|source| !source.is_tests()) {
        let name = source.path.strip_prefix("src/").unwrap();
        assert!(map.contains(&format!("`{name}`")), "{name} is missing in the map in src/lib.rs");
    }
}

#[test]
fn files_stay_short() {
    for source in sources("src") {
        let code = source.code().lines().filter(|line| !line.trim().is_empty() && !is_comment(line)).count();
        assert!(code <= MOST_LINES, "{} has {code} lines of code; divide it", source.path);
    }
}

#[test]
fn nothing_unfinished_or_unsafe_is_left() {
    let banned = ["dbg!(", "todo!(", "unimplemented!(", "TODO", "FIXME", "XXX", "#[ignore]"];
    let mut wrong = Vec::new();
    for source in all() {
        for (number, line) in source.lines() {
            for word in banned.iter().filter(|word| line.contains(*word)) {
                wrong.push(format!("{}:{number}: {word}", source.path));
            }
            let is_unsafe = line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
            if source.path.starts_with("src/") && source.path != "src/sys.rs" && is_unsafe && !is_comment(line) {
                wrong.push(format!("{}:{number}: unsafe outside src/sys.rs", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_exception_to_a_lint_has_its_reason() {
    for source in all() {
        for form in ["#[allow(", "#![allow(", "#[expect(", "#![expect("] {
            for (at, _) in source.text.match_indices(form) {
                let attribute = source.text[at..].split(")]").next().unwrap();
                assert!(attribute.contains("reason = \""), "{}: no reason in {attribute}", source.path);
            }
        }
    }
}
