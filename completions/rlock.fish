# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_rlock_global_optspecs
    string join \n url= config= store-timeout= password-file= json q/quiet v/verbose h/help V/version
end

function __fish_rlock_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_rlock_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_rlock_using_subcommand
    set -l cmd (__fish_rlock_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c rlock -n "__fish_rlock_needs_command" -l url -d 'The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]' -r -f
complete -c rlock -n "__fish_rlock_needs_command" -l config -d 'The file of defaults [default: /etc/rlock/config.toml]' -r -F
complete -c rlock -n "__fish_rlock_needs_command" -l store-timeout -d 'How long the store may be silent before rlock gives up with 69 [default: 30s]' -r -f
complete -c rlock -n "__fish_rlock_needs_command" -l password-file -d 'Read the store\'s password from this file, again at every connect' -r -F
complete -c rlock -n "__fish_rlock_needs_command" -l json -d 'Print one JSON object a line instead of a table'
complete -c rlock -n "__fish_rlock_needs_command" -s q -l quiet -d 'Do not say that the lock is busy or waited for'
complete -c rlock -n "__fish_rlock_needs_command" -s v -l verbose -d 'Say also what passes by itself: renewals that failed, locks that were restored'
complete -c rlock -n "__fish_rlock_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_needs_command" -s V -l version -d 'Print version'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "run" -d 'Run a command while holding the lock'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "inspect" -d 'Show who holds a key and who waits for it'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "list" -d 'List the keys that an rlock holds or waits for'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "ttl" -d 'Print how long the lease of a key still runs'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "force-release" -d 'Take a key away from its holder'
complete -c rlock -n "__fish_rlock_needs_command" -f -a "completions" -d 'Print the completions of a shell'
complete -c rlock -n __rlock_in_options -s k -l key -d 'What to lock: 1 to 512 bytes of text' -r -f -a "(__rlock_keys)"
complete -c rlock -n __rlock_in_options -l ttl -d 'How long the lease runs unless renewed, 2s to 24h [default: 30s]' -r -f
complete -c rlock -n __rlock_in_options -s w -l wait -l timeout -d 'Wait at most this long for the lock, then end with 75 [default: for ever]' -r -f
complete -c rlock -n __rlock_in_options -s E -l conflict-exit-code -d 'The exit code when the lock is busy [default: 75]' -r -f
complete -c rlock -n __rlock_in_options -l on-lost -d 'What to do when the lease is about to be lost [default: terminate]' -r -f -a "terminate\t'The signal, then KILL: the command is dead before the lock can pass'
kill\t'KILL at once'
warn\t'Say so and let the command go on without the lock'"
complete -c rlock -n __rlock_in_options -l signal -d 'The first signal of --on-lost terminate [default: TERM]' -r -f -a "(string split ' ' (kill -l))"
complete -c rlock -n __rlock_in_options -l kill-after -d 'The time between that signal and KILL, at most a third of the ttl [default: a sixth of the ttl, at most 5s]' -r -f
complete -c rlock -n __rlock_in_options -l max-runtime -d 'Stop the command when it has run this long, then end with 124 [default: never]' -r -f
complete -c rlock -n __rlock_in_options -l hold-at-least -d 'Keep the lock until this long after the command\'s start, also when it ends sooner [default: 0]' -r -f
complete -c rlock -n __rlock_in_options -l jitter -d 'Wait a random time, at most this long, before asking for the lock [default: 0]' -r -f
complete -c rlock -n __rlock_in_options -l wait-replicas -d 'Hold the lock only while this many of the server\'s replicas have it too, else end with 69 [default: 0]' -r
complete -c rlock -n __rlock_in_options -l label -d 'A word for people, shown beside the holder' -r -f
complete -c rlock -n __rlock_in_options -l report -d 'Append the outcome as one line of JSON to a file, or write it to an open descriptor' -r -F
complete -c rlock -n __rlock_in_options -s c -d 'Run this with /bin/sh' -r -f -a "(__fish_complete_command)"
complete -c rlock -n __rlock_in_options -l url -d 'The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]' -r -f
complete -c rlock -n __rlock_in_options -l config -d 'The file of defaults [default: /etc/rlock/config.toml]' -r -F
complete -c rlock -n __rlock_in_options -l store-timeout -d 'How long the store may be silent before rlock gives up with 69 [default: 30s]' -r -f
complete -c rlock -n __rlock_in_options -l password-file -d 'Read the store\'s password from this file, again at every connect' -r -F
complete -c rlock -n __rlock_in_options -s n -l nonblock -l nb -d 'Do not wait: end with 75 when the lock is held'
complete -c rlock -n __rlock_in_options -s x -l exclusive -d 'Take the lock exclusively, which is the default'
complete -c rlock -n __rlock_in_options -l skip -d 'Do nothing, silently and with exit code 0, when the lock is held: -n -q -E 0, the form for cron'
complete -c rlock -n __rlock_in_options -l no-forward -d 'Do not forward signals to the command'
complete -c rlock -n __rlock_in_options -l json -d 'Print one JSON object a line instead of a table'
complete -c rlock -n __rlock_in_options -s q -l quiet -d 'Do not say that the lock is busy or waited for'
complete -c rlock -n __rlock_in_options -s v -l verbose -d 'Say also what passes by itself: renewals that failed, locks that were restored'
complete -c rlock -n __rlock_in_options -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l url -d 'The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l config -d 'The file of defaults [default: /etc/rlock/config.toml]' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l store-timeout -d 'How long the store may be silent before rlock gives up with 69 [default: 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l password-file -d 'Read the store\'s password from this file, again at every connect' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l json -d 'Print one JSON object a line instead of a table'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -s q -l quiet -d 'Do not say that the lock is busy or waited for'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -s v -l verbose -d 'Say also what passes by itself: renewals that failed, locks that were restored'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_using_subcommand list" -l url -d 'The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand list" -l config -d 'The file of defaults [default: /etc/rlock/config.toml]' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand list" -l store-timeout -d 'How long the store may be silent before rlock gives up with 69 [default: 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand list" -l password-file -d 'Read the store\'s password from this file, again at every connect' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand list" -l json -d 'Print one JSON object a line instead of a table'
complete -c rlock -n "__fish_rlock_using_subcommand list" -s q -l quiet -d 'Do not say that the lock is busy or waited for'
complete -c rlock -n "__fish_rlock_using_subcommand list" -s v -l verbose -d 'Say also what passes by itself: renewals that failed, locks that were restored'
complete -c rlock -n "__fish_rlock_using_subcommand list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_using_subcommand ttl" -l url -d 'The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand ttl" -l config -d 'The file of defaults [default: /etc/rlock/config.toml]' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand ttl" -l store-timeout -d 'How long the store may be silent before rlock gives up with 69 [default: 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand ttl" -l password-file -d 'Read the store\'s password from this file, again at every connect' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand ttl" -l ms -d 'In milliseconds: -1 for a lock without end, -2 for a free key'
complete -c rlock -n "__fish_rlock_using_subcommand ttl" -l json -d 'Print one JSON object a line instead of a table'
complete -c rlock -n "__fish_rlock_using_subcommand ttl" -s q -l quiet -d 'Do not say that the lock is busy or waited for'
complete -c rlock -n "__fish_rlock_using_subcommand ttl" -s v -l verbose -d 'Say also what passes by itself: renewals that failed, locks that were restored'
complete -c rlock -n "__fish_rlock_using_subcommand ttl" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -l claim -d 'Only if this claim holds the key or waits for it, as `inspect` shows it' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -s w -l wait -d 'How long to wait for the key to pass [default: until the lease ends and 2s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -l url -d 'The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -l config -d 'The file of defaults [default: /etc/rlock/config.toml]' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -l store-timeout -d 'How long the store may be silent before rlock gives up with 69 [default: 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -l password-file -d 'Read the store\'s password from this file, again at every connect' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -s y -l yes -d 'Do not ask'
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -l now -d 'Pass the key on at once, while the holder\'s command may still run: two may run side by side'
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -l json -d 'Print one JSON object a line instead of a table'
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -s q -l quiet -d 'Do not say that the lock is busy or waited for'
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -s v -l verbose -d 'Say also what passes by itself: renewals that failed, locks that were restored'
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_using_subcommand completions" -l url -d 'The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand completions" -l config -d 'The file of defaults [default: /etc/rlock/config.toml]' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand completions" -l store-timeout -d 'How long the store may be silent before rlock gives up with 69 [default: 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand completions" -l password-file -d 'Read the store\'s password from this file, again at every connect' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand completions" -l json -d 'Print one JSON object a line instead of a table'
complete -c rlock -n "__fish_rlock_using_subcommand completions" -s q -l quiet -d 'Do not say that the lock is busy or waited for'
complete -c rlock -n "__fish_rlock_using_subcommand completions" -s v -l verbose -d 'Say also what passes by itself: renewals that failed, locks that were restored'
complete -c rlock -n "__fish_rlock_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'

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
            case --claim --config --conflict-exit-code --hold-at-least --jitter --key --kill-after --label --max-runtime --on-lost --password-file --report --signal --store-timeout --timeout --ttl --url --wait --wait-replicas -E -c -k -w
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
    timeout --foreground 2 rlock --store-timeout 1s $store list --json 2>/dev/null | sed -En 's/^[{]"v":1,"key":"(([^"\]|[\]["\])*)".*/\1/; t key; d; :key; s/[\](["\])/\1/g; p'
end

complete -c rlock -n "__fish_rlock_using_subcommand inspect ttl force-release" -f -a "(__rlock_keys)"
complete -c rlock -n "__fish_rlock_using_subcommand list" -f
complete -c rlock -n "__fish_rlock_using_subcommand completions" -f -a "bash zsh fish"
complete -c rlock -n __rlock_in_command -f -a "(__rlock_complete_command)"
