#!/bin/bash
# Sets up what the tests of bonds and ecash run against, in the folder FOLDER: a Bitcoin node (Bitcoin Knots, of Debian's
# unstable suite) and a Cashu mint (Nutshell). Every file is checked against its SHA-256. Nothing is installed outside.
#   tools/bonds.sh FOLDER PYTHON    leaves FOLDER/bitcoind and FOLDER/mint
set -euo pipefail
folder=$(realpath -m "$1") python=$2 here=$(dirname "$(realpath "$0")")
mkdir -p "$folder" && cd "$folder"

if [ ! -x bitcoind ]; then
  mkdir -p apt/{etc/apt/sources.list.d,etc/apt/preferences.d,etc/apt/apt.conf.d,var/lib/apt/lists/partial,var/cache/apt/archives/partial,var/lib/dpkg} debs
  touch apt/var/lib/dpkg/status
  # The machine's own mirror of Debian, in whatever file it stands.
  mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | sed -nE '/^ *#|security/!s|.*(https?://[^ ]*debian)/?( .*)?$|\1|p' | sed -n 1p || true)
  [ -n "$mirror" ] || { echo "apt knows no mirror of Debian: name a bitcoind by NODEWIRE_BITCOIND instead" >&2; exit 1; }
  # Who signs the suite may be newer than this machine's keys: the files are checked by their hashes instead.
  echo "deb [trusted=yes] $mirror sid main" > apt/etc/apt/sources.list
  cp /etc/apt/apt.conf.d/* apt/etc/apt/apt.conf.d/ 2>/dev/null || true
  apt=(apt-get -q -o "Dir=$PWD/apt" -o "Dir::State::status=$PWD/apt/var/lib/dpkg/status" -o APT::Architecture=amd64 -o APT::Sandbox::User=root)
  "${apt[@]}" update > apt.log 2>&1
  (cd debs && "${apt[@]}" download $(awk '{sub("_.*", "", $2); print $2}' "$here/bonds.debs.sha256") >> ../apt.log 2>&1)
  (cd debs && sha256sum --quiet --strict -c "$here/bonds.debs.sha256") || {
    echo "Debian has newer files than tools/bonds.debs.sha256 knows: name a bitcoind by NODEWIRE_BITCOIND instead" >&2
    exit 1
  }
  for one in debs/*.deb; do dpkg-deb -x "$one" root; done
  printf '#!/bin/sh\nL=%s/root/usr/lib/x86_64-linux-gnu\nexec "$L/ld-linux-x86-64.so.2" --library-path "$L" "%s/root/usr/bin/bitcoind" "$@"\n' "$PWD" "$PWD" > bitcoind
  chmod +x bitcoind
fi

if [ ! -x mint ]; then
  [ -d venv ] || "$python" -m venv venv
  venv/bin/python -m pip --disable-pip-version-check -qq install --no-deps --require-hashes -r "$here/../constraints-nutshell.txt"
  ln -sf venv/bin/mint mint
fi
