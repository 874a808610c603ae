# shellcheck shell=bash disable=SC2154
# scripts/chroot.sh: functions of the scripts that run tests in a chroot; they source it.
#
# The script sets `root`, the chroot's folder, and `environment`, an array of NAME=VALUE: all variables that commands inside have.

# private_mounts FLAG COMMAND...: runs COMMAND again with variable FLAG set and with mounts of its own, which go when it ends.
private_mounts() {
    local flag=$1
    shift
    [ -z "${!flag:-}" ] || return 0
    exec env "$flag=1" unshare --mount --propagation private "$@"
}

# prepare_chroot: devices, processes, names of hosts, certificates, and a copy of the sources in /src.
prepare_chroot() {
    mkdir -p "$root"/{src,proc,dev,tmp,etc/ssl/certs}
    mount --rbind /dev "$root/dev"
    mount -t proc proc "$root/proc"
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
        cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    fi
    # Removed files must not stay; environments and what was built do.
    find "$root/src" -mindepth 1 -maxdepth 1 ! -name '.venv-*' -exec rm -rf {} +
    git ls-files -z --cached --others --exclude-standard \
        | tar --create --null --ignore-failed-read --files-from - 2>/dev/null | tar --extract --directory "$root/src"
}

# add_registry_settings: adds the settings of registries and proxies to `environment`. A file or a folder that one names is copied.
add_registry_settings() {
    local name value
    while IFS='=' read -r -d '' name value; do
        case $name in
            CARGO_HOME | CARGO_TARGET_DIR | PIP_REQUIRE_VIRTUALENV) ;;
            PIP_* | CARGO_* | *_proxy | *_PROXY | SSL_CERT_FILE)
                environment+=("$name=$value")
                if [ "${value#/}" != "$value" ] && [ -e "$value" ] && [ ! -e "$root$value" ]; then
                    mkdir -p "$(dirname "$root$value")"
                    cp -rL "$value" "$root$value"
                fi
                ;;
        esac
    done < <(env -0)
}

# inside COMMAND...: runs COMMAND in the chroot.
inside() { chroot "$root" /usr/bin/env -i "${environment[@]}" "$@"; }
