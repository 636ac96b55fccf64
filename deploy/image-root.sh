#!/bin/sh
# Makes the file tree of the container image: strata, the libraries of glibc that it is linked
# with, certificates of authorities, its configuration and licences. No shell and no package manager: nothing to
# keep up to date but strata.
#   deploy/image-root.sh STRATA ROOT
# The Dockerfile's last stage is exactly this tree, and the tests run it as a container.
set -eu
if [ $# -ne 2 ]; then
    echo "usage: $0 STRATA ROOT" >&2
    exit 2
fi
strata=$1 root=$2
repository=$(cd "$(dirname "$0")/.." && pwd)

for directory in dev etc/ssl/certs etc/strata proc run/strata sys tmp usr/local/bin \
    usr/local/share/doc/strata/ebpf var/cache/strata var/lib/strata; do
    mkdir -p "$root/$directory"
done
chmod 1777 "$root/tmp"
chmod 0700 "$root/var/cache/strata" "$root/var/lib/strata"

install -m 0755 "$strata" "$root/usr/local/bin/strata"
# `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, and the loader as a path alone.
ldd "$strata" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    install -m 0755 "$library" "$root$library"
done

# Those of the build's Debian; a file of your own comes by `ca_file` or SSL_CERT_FILE.
install -m 0644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
# The worker that parses other programs' files runs as user nobody.
printf 'root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n' \
    >"$root/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$root/etc/nsswitch.conf"

install -m 0644 "$repository/userspace/config/strata.example.toml" "$root/etc/strata/strata.toml"
for document in README.md LICENSE LICENSE-MIT LICENSE-APACHE ebpf/LICENSE; do
    install -m 0644 "$repository/$document" "$root/usr/local/share/doc/strata/$document"
done
