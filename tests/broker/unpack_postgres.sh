#!/usr/bin/env bash
# usage: unpack_postgres.sh FOLDER
# Unpacks Debian's Postgres into FOLDER, from FOLDER/debs if packages lie there, else from apt. Nothing is installed, so
# no service is started and no root is needed. Libraries that the machine lacks are named; they are not fetched.
set -euo pipefail
mkdir -p "$1/debs"
cd "$1/debs"
shopt -s nullglob
debs=(*.deb)
if [ ${#debs[@]} -eq 0 ]; then
  # The package without a number depends on the release's own version.
  server() { apt-cache depends postgresql | grep -o 'postgresql-[0-9]\+$'; }
  server >/dev/null || apt-get update -q
  packages=("$(server)" libpq5)
  apt-get download -q "${packages[@]}" || { apt-get update -q && apt-get download -q "${packages[@]}"; }
  debs=(*.deb)
fi
for deb in "${debs[@]}"; do
  dpkg -x "$deb" ..
done
cd ..
libraries=$(dirname usr/lib/*/libpq.so.5)
if LD_LIBRARY_PATH=$libraries ldd usr/lib/postgresql/*/bin/{postgres,initdb} | grep 'not found'; then
  echo "the libraries above are missing; install the packages that have them" >&2
  exit 1
fi
touch .unpacked
