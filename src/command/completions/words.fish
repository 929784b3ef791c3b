
# Above is what clap knows: the options and their values. Below are the keys that are held and the wrapped command,
# which are not words of rlock's.

# Prints the words of the wrapped command before the cursor; fails where there is no command yet.
function __rlock_command
    set -l words (commandline -opc)
    set -e words[1]
    set -l sub
    while set -q words[1]
        set -l word $words[1]
        set -e words[1]
        # The last of several short options may take the next word.
        if string match -qr -- '^-[^-].' $word
            set word -(string sub -s -1 -- $word)
        end
        switch $word
            case --
                test "$sub" = run; or return 1
                string join \n -- $words
                return 0
            case @VALUED@
                # Its value is what the cursor is at.
                set -q words[1]; or return 1
                set -e words[1]
            case '-*'
            case '*'
                if not set -q sub[1]
                    set sub $word
                else if test "$sub" = run
                    string join \n -- $word $words
                    return 0
                end
        end
    end
    # The word at the cursor may be its first.
    test "$sub" = run; and not string match -q -- '-*' (commandline -ct)
end

function __rlock_in_options
    __fish_rlock_using_subcommand run; and not __rlock_command >/dev/null
end

function __rlock_in_command
    __fish_rlock_using_subcommand run; and __rlock_command >/dev/null
end

function __rlock_complete_command
    complete -C (string join ' ' -- (string escape -- (__rlock_command)) (commandline -ct))
end

# The keys that are held or waited for, one a line.
function __rlock_keys
    set -l words (commandline -opc)
    set -l store (string match -r -- '^--(?:url|config|password-file)=.*' $words)
    for option in --url --config --password-file
        if set -l at (contains -i -- $option $words)
            set -a store $option $words[(math $at + 1)]
        end
    end
    timeout --foreground 2 rlock --store-timeout 1s $store list --json 2>/dev/null | sed -En '@KEYS@'
end

complete -c rlock -n "__fish_rlock_using_subcommand inspect ttl force-release" -f -a "(__rlock_keys)"
complete -c rlock -n "__fish_rlock_using_subcommand list" -f
complete -c rlock -n "__fish_rlock_using_subcommand completions" -f -a "bash zsh fish"
complete -c rlock -n __rlock_in_command -f -a "(__rlock_complete_command)"
