#!/usr/bin/env bash
# Makes the stores beside it anew: a broker's key with the certificates of two authorities, and the first of them to be
# trusted, as keytool of JDK 17 and openssl 3.0 write them. The keys are for tests alone; every password is `secret`.
set -euo pipefail
cd "$(dirname "$0")"
rm -f ./*.p12 ./*.jks
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

keys() { keytool "$@" -storepass secret -keystore "$WORK/keys.p12" >/dev/null 2>&1; }
for who in authority between broker; do
    keys -genkeypair -alias $who -keyalg EC -groupname secp256r1 -dname "CN=$who" -validity 36500 -ext bc:c=ca:true
done
keys -exportcert -alias authority -rfc -file "$WORK/authority.pem"
sign() { # sign WHO BY EXTENSIONS...
    local who=$1 by=$2
    shift 2
    keys -certreq -alias "$who" -file "$WORK/request.pem"
    keys -gencert -alias "$by" -rfc -validity 36500 -infile "$WORK/request.pem" -outfile "$WORK/$who.pem" "$@"
    keys -importcert -noprompt -alias "$who" -file "$WORK/$who.pem"
}
sign between authority -ext bc:c=ca:true
sign broker between -ext san=dns:localhost

copy() { # copy FILE TYPE JAVA_OPTIONS...: the broker's key alone, with its chain
    local file=$1 type=$2
    shift 2
    keytool "$@" -importkeystore -srckeystore "$WORK/keys.p12" -srcstorepass secret -srcalias broker \
        -destkeystore "$file" -deststorepass secret -deststoretype "$type" >/dev/null 2>&1
}
trust() { # trust FILE TYPE JAVA_OPTIONS...
    local file=$1 type=$2
    shift 2
    keytool "$@" -importcert -noprompt -alias authority -file "$WORK/authority.pem" -keystore "$file" -storetype "$type" \
        -storepass secret >/dev/null 2>&1
}
copy keytool.p12 PKCS12
copy keytool-legacy.p12 PKCS12 -J-Dkeystore.pkcs12.legacy
copy old.jks JKS
trust trust-keytool.p12 PKCS12
trust trust-keytool-legacy.p12 PKCS12 -J-Dkeystore.pkcs12.legacy
trust trust-old.jks JKS
cp keytool.p12 both.p12
trust both.p12 PKCS12
openssl pkcs12 -in keytool.p12 -passin pass:secret -nodes -out "$WORK/all.pem" 2>/dev/null
openssl pkcs12 -export -in "$WORK/all.pem" -passout pass:secret -out openssl.p12
openssl pkcs12 -export -legacy -in "$WORK/all.pem" -passout pass:secret -out openssl-legacy.p12
openssl pkcs12 -export -nokeys -in "$WORK/authority.pem" -passout pass:secret -out trust-openssl.p12
