# The keys that are held or waited for. They are not words of rlock's, as the options below are.
(( $+functions[_rlock_keys] )) ||
_rlock_keys() {
    local option value
    local -a expl keys store
    for option in --url --config --password-file; do
        # After the subcommand, or before it.
        value=${opt_args[$option]:-$_rlock_opt_args[$option]}
        if [[ -n $value ]]; then
            store+=($option ${(Q)value})
        fi
    done
    keys=(${(f)"$(timeout --foreground 2 rlock --store-timeout 1s $store list --json 2>/dev/null | sed -En '@KEYS@')"})
    _wanted keys expl 'held key' compadd -a keys
}
