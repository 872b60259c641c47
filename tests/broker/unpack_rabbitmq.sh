#!/usr/bin/env bash
# usage: unpack_rabbitmq.sh FOLDER
# Unpacks Debian's RabbitMQ into FOLDER, from FOLDER/debs if packages lie there, else from apt. Nothing is installed, so
# no service is started and no root is needed. A machine without a network gets a copy of FOLDER/debs.
set -euo pipefail
mkdir -p "$1/debs"
cd "$1/debs"
shopt -s nullglob
debs=(*.deb)
if [ ${#debs[@]} -eq 0 ]; then
  erlang=(base asn1 crypto eldap ftp inets mnesia os-mon parsetools public-key runtime-tools snmp ssl syntax-tools tftp
    tools xmerl)
  packages=(rabbitmq-server "${erlang[@]/#/erlang-}")
  apt-get download -q "${packages[@]}" || { apt-get update -q && apt-get download -q "${packages[@]}"; }
  debs=(*.deb)
fi
for deb in "${debs[@]}"; do
  dpkg -x "$deb" ..
done
touch ../.unpacked
