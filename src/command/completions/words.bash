
# Above is what clap knows: the options and their values. Below are the keys that are held and the wrapped command,
# which are not words of rlock's.

# The keys that are held or waited for, one a line; the words are options that name the store.
_rlock_keys() {
    timeout --foreground 2 rlock --store-timeout 1s "$@" list --json 2>/dev/null | sed -En '@KEYS@'
}

# Offers the held keys that begin with the word at the cursor, each as it would be typed.
_rlock_offer_keys() {
    local cur=$1 typed key char head=''
    shift
    # No key is the name of a file.
    compopt +o default +o bashdefault
    # Bash replaces the word from the last character at which it divides words.
    for char in : = @; do
        if [[ $COMP_WORDBREAKS == *"$char"* && $cur == *"$char"* ]]; then
            key=${cur%"${cur##*"$char"}"}
            if ((${#key} > ${#head})); then head=$key; fi
        fi
    done
    typed=${cur//\\/}
    case $cur in
        [\'\"]*) typed=${cur:1} head='' ;;
    esac
    while IFS= read -r key; do
        [[ $key == "$typed"* ]] || continue
        case $cur in
            \'*) key=${key//"'"/"'\\''"} ;;
            \"*)
                for char in \\ \" \$ \`; do
                    key=${key//"$char"/"\\$char"}
                done
                ;;
            *) printf -v key %q "$key" ;;
        esac
        COMPREPLY+=("${key#"$head"}")
    done < <(_rlock_keys "$@")
}

# Completes the words from this one on, counted as bash divides them, as a command line of their own.
_rlock_offer_command() {
    local offset=$1 cur=$2
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$offset"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$offset"
    elif ((offset == COMP_CWORD)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$cur")
    fi
}

_rlock_words() {
    local valued=' @VALUED@ ' line=${COMP_LINE:0:COMP_POINT} words=() starts=() store=() at='' sub='' takes='' i word
    COMPREPLY=()
    # Bash divides words at : and =, too; what was typed as one word is one again.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ i -eq 0 || $line == [[:blank:]]* ]]; then
            line=${line#"${line%%[![:blank:]]*}"}
            words+=('')
            starts+=("$i")
        fi
        if ((i == COMP_CWORD)); then word=$line; fi
        words[${#words[@]} - 1]+=$word
        line=${line#"$word"}
    done
    local last=$((${#words[@]} - 1))
    local cur=${words[last]}
    for ((i = 1; i < last; i++)); do
        word=${words[i]}
        case $word in
            --)
                if [[ $sub == run ]]; then at=$((i + 1)); fi
                break
                ;;
            --url=* | --config=* | --password-file=*) store+=("$word") ;;
            --*=*) ;;
            -*)
                # The last of several short options may take the next word.
                if [[ $word == -[!-]?* ]]; then word=-${word: -1}; fi
                if [[ $valued == *" $word "* ]]; then
                    ((++i))
                    if ((i == last)); then takes=$word; fi
                    case $word in
                        --url | --config | --password-file) store+=("$word" "${words[i]}") ;;
                    esac
                fi
                ;;
            *)
                if [[ ! $sub ]]; then
                    sub=$word
                elif [[ $sub == run ]]; then
                    at=$i
                    break
                fi
                ;;
        esac
    done
    if [[ ! $at && ! $takes && $sub == run && $cur != -* ]]; then at=$last; fi

    if [[ $at ]]; then
        _rlock_offer_command "${starts[at]}" "$cur"
    elif [[ $takes == -k || $takes == --key ]]; then
        _rlock_offer_keys "$cur" "${store[@]}"
    elif [[ $sub == run && $cur == --key=* ]]; then
        _rlock_offer_keys "${cur#*=}" "${store[@]}"
    elif [[ $takes == --signal ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(compgen -A signal SIG | sed p\;s/SIG//)" -- "$cur")
    elif [[ ! $takes && $cur != -* && $sub =~ ^(inspect|ttl|force-release)$ ]]; then
        _rlock_offer_keys "$cur" "${store[@]}"
    elif [[ $cur == --*=* ]]; then
        _rlock "$1" "${cur#*=}" "${cur%%=*}"
    else
        _rlock "$1" "$cur" "${takes:-${words[last - 1]}}"
    fi
}

complete -F _rlock_words -o bashdefault -o default rlock
