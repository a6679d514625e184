#!/bin/sh
# Makes a folder with the secrets of compose.secure.yaml: keys, certificates, users of cache and broker
# with new passwords, and a tenants file with one administrator, whose token it prints once.
# Usage: make_secrets.sh FOLDER [PUBLIC_NAME [PREFIX]]     needs openssl and kernelfarm
# PREFIX: the certificates between services also name PREFIX-frontend and so on, the chart's Services.
set -eu
umask 077
folder=$1
public_name=${2:-localhost}
prefix=${3:-kernelfarm}
here=$(cd "$(dirname "$0")" && pwd)

if [ -e "$folder" ]; then
  echo "make_secrets.sh: $folder exists already; nothing was changed" >&2
  exit 1
fi
mkdir -p "$folder/tenants"
cd "$folder"

new_ca() { # FILE NAME
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
    -subj "/CN=$2" -keyout "$1.key" -out "$1.pem" 2>/dev/null
}

new_certificate() { # FILE CA NAMES
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" \
    -keyout "$1.key" -out "$1.csr" 2>/dev/null
  printf 'subjectAltName=%s\n' "$3" > "$1.ext"
  openssl x509 -req -in "$1.csr" -CA "$2.pem" -CAkey "$2.key" -CAcreateserial -days 397 \
    -extfile "$1.ext" -out "$1.pem" 2>/dev/null
  rm "$1.csr" "$1.ext"
}

# Services have a CA of their own: a caller with one of its certificates is a service.
new_ca internal-ca "kernelfarm services"
for service in frontend optimizer codegen worker; do
  new_certificate "$service" internal-ca "DNS:$service,DNS:$prefix-$service,DNS:localhost,IP:127.0.0.1"
done
new_ca public-ca "kernelfarm public"
new_certificate public public-ca "DNS:$public_name,DNS:localhost,IP:127.0.0.1"

kernelfarm keys . > /dev/null

cp "$here/redis/cache-users.acl" "$here/redis/broker-users.acl" .
for user in WORKER EDGE FRONTEND SWEEPER READER OPERATOR PRODUCER CONSUMER; do
  password=$(openssl rand -hex 24)
  digest=$(printf %s "$password" | openssl dgst -sha256 -r | cut -d ' ' -f 1)
  sed -i "s/#${user}_SHA256/#$digest/" cache-users.acl broker-users.acl
  echo "KERNELFARM_${user}_PASSWORD=$password" >> passwords.env
done

kernelfarm tenants add tenants/tenants.toml operators > /dev/null
echo "the administrator's token:"
kernelfarm tenants token tenants/tenants.toml operators --role administrator
