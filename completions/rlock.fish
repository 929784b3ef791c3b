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

complete -c rlock -n "__fish_rlock_needs_command" -l url -d 'The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]' -r
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
complete -c rlock -n "__fish_rlock_using_subcommand run" -s k -l key -d 'What to lock: 1 to 512 bytes of text' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand run" -l ttl -d 'How long the lease runs unless renewed, 2s to 24h [default: 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand run" -s w -l wait -l timeout -d 'Wait at most this long for the lock, then end with 75 [default: for ever]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand run" -s E -l conflict-exit-code -d 'The exit code when the lock is busy [default: 75]' -r
complete -c rlock -n "__fish_rlock_using_subcommand run" -l on-lost -d 'What to do when the lease is about to be lost [default: terminate]' -r -f -a "terminate\t'The signal, then KILL: the command is dead before the lock can pass'
kill\t'KILL at once'
warn\t'Say so and let the command go on without the lock'"
complete -c rlock -n "__fish_rlock_using_subcommand run" -l signal -d 'The first signal of --on-lost terminate [default: TERM]' -r
complete -c rlock -n "__fish_rlock_using_subcommand run" -l kill-after -d 'The time between that signal and KILL, at most a third of the ttl [default: a sixth of the ttl, at most 5s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand run" -l max-runtime -d 'Stop the command when it has run this long, then end with 124 [default: never]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand run" -l hold-at-least -d 'Keep the lock until this long after the command\'s start, also when it ends sooner [default: 0]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand run" -l jitter -d 'Wait a random time, at most this long, before asking for the lock [default: 0]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand run" -l wait-replicas -d 'Hold the lock only while this many of the server\'s replicas have it too, else end with 69 [default: 0]' -r
complete -c rlock -n "__fish_rlock_using_subcommand run" -l label -d 'A word for people, shown beside the holder' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand run" -l report -d 'Append the outcome as one line of JSON to a file, or write it to an open descriptor' -r
complete -c rlock -n "__fish_rlock_using_subcommand run" -s c -d 'Run this with /bin/sh' -r -f -a "(__fish_complete_command)"
complete -c rlock -n "__fish_rlock_using_subcommand run" -l url -d 'The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]' -r
complete -c rlock -n "__fish_rlock_using_subcommand run" -l config -d 'The file of defaults [default: /etc/rlock/config.toml]' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand run" -l store-timeout -d 'How long the store may be silent before rlock gives up with 69 [default: 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand run" -l password-file -d 'Read the store\'s password from this file, again at every connect' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand run" -s n -l nonblock -l nb -d 'Do not wait: end with 75 when the lock is held'
complete -c rlock -n "__fish_rlock_using_subcommand run" -s x -l exclusive -d 'Take the lock exclusively, which is the default'
complete -c rlock -n "__fish_rlock_using_subcommand run" -l skip -d 'Do nothing, silently and with exit code 0, when the lock is held: -n -q -E 0, the form for cron'
complete -c rlock -n "__fish_rlock_using_subcommand run" -l no-forward -d 'Do not forward signals to the command'
complete -c rlock -n "__fish_rlock_using_subcommand run" -l json -d 'Print one JSON object a line instead of a table'
complete -c rlock -n "__fish_rlock_using_subcommand run" -s q -l quiet -d 'Do not say that the lock is busy or waited for'
complete -c rlock -n "__fish_rlock_using_subcommand run" -s v -l verbose -d 'Say also what passes by itself: renewals that failed, locks that were restored'
complete -c rlock -n "__fish_rlock_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l url -d 'The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]' -r
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l config -d 'The file of defaults [default: /etc/rlock/config.toml]' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l store-timeout -d 'How long the store may be silent before rlock gives up with 69 [default: 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l password-file -d 'Read the store\'s password from this file, again at every connect' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -l json -d 'Print one JSON object a line instead of a table'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -s q -l quiet -d 'Do not say that the lock is busy or waited for'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -s v -l verbose -d 'Say also what passes by itself: renewals that failed, locks that were restored'
complete -c rlock -n "__fish_rlock_using_subcommand inspect" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_using_subcommand list" -l url -d 'The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]' -r
complete -c rlock -n "__fish_rlock_using_subcommand list" -l config -d 'The file of defaults [default: /etc/rlock/config.toml]' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand list" -l store-timeout -d 'How long the store may be silent before rlock gives up with 69 [default: 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand list" -l password-file -d 'Read the store\'s password from this file, again at every connect' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand list" -l json -d 'Print one JSON object a line instead of a table'
complete -c rlock -n "__fish_rlock_using_subcommand list" -s q -l quiet -d 'Do not say that the lock is busy or waited for'
complete -c rlock -n "__fish_rlock_using_subcommand list" -s v -l verbose -d 'Say also what passes by itself: renewals that failed, locks that were restored'
complete -c rlock -n "__fish_rlock_using_subcommand list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_using_subcommand ttl" -l url -d 'The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]' -r
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
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -l url -d 'The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]' -r
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -l config -d 'The file of defaults [default: /etc/rlock/config.toml]' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -l store-timeout -d 'How long the store may be silent before rlock gives up with 69 [default: 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -l password-file -d 'Read the store\'s password from this file, again at every connect' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -s y -l yes -d 'Do not ask'
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -l now -d 'Pass the key on at once, while the holder\'s command may still run: two may run side by side'
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -l json -d 'Print one JSON object a line instead of a table'
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -s q -l quiet -d 'Do not say that the lock is busy or waited for'
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -s v -l verbose -d 'Say also what passes by itself: renewals that failed, locks that were restored'
complete -c rlock -n "__fish_rlock_using_subcommand force-release" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rlock -n "__fish_rlock_using_subcommand completions" -l url -d 'The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]' -r
complete -c rlock -n "__fish_rlock_using_subcommand completions" -l config -d 'The file of defaults [default: /etc/rlock/config.toml]' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand completions" -l store-timeout -d 'How long the store may be silent before rlock gives up with 69 [default: 30s]' -r -f
complete -c rlock -n "__fish_rlock_using_subcommand completions" -l password-file -d 'Read the store\'s password from this file, again at every connect' -r -F
complete -c rlock -n "__fish_rlock_using_subcommand completions" -l json -d 'Print one JSON object a line instead of a table'
complete -c rlock -n "__fish_rlock_using_subcommand completions" -s q -l quiet -d 'Do not say that the lock is busy or waited for'
complete -c rlock -n "__fish_rlock_using_subcommand completions" -s v -l verbose -d 'Say also what passes by itself: renewals that failed, locks that were restored'
complete -c rlock -n "__fish_rlock_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
