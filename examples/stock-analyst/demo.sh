#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# The demo: a stock analyst with a frozen environment, run twice over D-Bus, calls an API that wants an OAuth access
# token which it never sees. Runs as root on a booted machine with agentd installed; ./dev demo brings one. Each claim
# is checked, and the first one that does not hold ends the demo with status 1.
#
# Needs in $MATERIAL: rootfs.tar (python3-matplotlib, nodejs), node_modules (see package.json).

set -euo pipefail
shopt -s inherit_errexit

HERE=$(dirname "$(readlink -f "$0")")
MATERIAL=${AGENTD_DEMO_MATERIAL:-/var/cache/agentd-demo}
WORK=/run/agentd-demo
AGENT=stock-analyst
DROPIN=/etc/agentd/bridge.conf.d/50-demo.conf
CA=/usr/local/share/ca-certificates/agentd-demo.crt
QUESTION='{"question": "Which of these did best? Draw it.", "companies": ["AAPL", "AMZN", "GOOG", "IBM", "MSFT"]}'
HELD='{"question": "Which of these did best? Draw it.", "hold": 60}'

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
        BOLD=$'\e[1m' DIM=$'\e[2m' GREEN=$'\e[32m' RED=$'\e[31m' OFF=$'\e[0m'
else
        BOLD='' DIM='' GREEN='' RED='' OFF=''
fi

step_number=0
step() {
        step_number=$((step_number + 1))
        printf '\n%s%d. %s%s\n' "$BOLD" "$step_number" "$1" "$OFF"
}
say() { printf '   %s\n' "$*"; }
quote() { sed 's/^/   │ /'; }
# Also from within $(…), where only stderr reaches the reader, and the caller fails after it.
fail() {
        trap - ERR
        if [ ! -e "$WORK/failed" ]; then
                printf '   %s✗ %s%s\n\n%sThe demo failed.%s\n' "$RED" "$*" "$OFF" "$BOLD$RED" "$OFF" >&2
                touch "$WORK/failed" 2>/dev/null || true
        fi
        exit 1
}
# claim SENTENCE COMMAND…: the command says whether the sentence is true.
claim() {
        local sentence=$1 output
        shift
        if output=$("$@" 2>&1); then
                printf '   %s✓%s %s\n' "$GREEN" "$OFF" "$sentence"
        else
                [ -z "$output" ] || tail -n 10 <<<"$output" | quote >&2
                fail "This does not hold: $sentence"
        fi
}
equal() {
        [ -n "$1" ] && [ "$1" = "$2" ] && return
        echo "'$1' is not '$2'"
        return 1
}
# quietly COMMAND…: its output is shown only where it fails.
quietly() {
        local output
        output=$("$@" 2>&1) || {
                tail -n 10 <<<"$output" | quote >&2
                fail "This failed: $*"
        }
}
# shown COMMAND…: its output is part of the story.
shown() {
        local output
        output=$("$@" 2>&1) || {
                tail -n 10 <<<"$output" | quote >&2
                fail "This failed: $*"
        }
        quote <<<"$output"
}
trap 'fail "demo.sh, line $LINENO: $BASH_COMMAND"' ERR

cleanup() {
        local pid
        [ -z "${importing:-}" ] || kill "$importing" 2>/dev/null || true
        for pid in $(pids_of "${unit_c:-}") $(pids_of "${unit_d:-}"); do
                kill -USR1 "$pid" 2>/dev/null || true
        done
        systemctl stop agentd-demo-auth agentd-demo-market 2>/dev/null || true
        rm -rf "$WORK" "$DROPIN"
}

manager() { busctl --json=short call org.agentd1 /org/agentd1 org.agentd1.Manager "$@"; }
property() { busctl --json=short get-property org.agentd1 "/org/agentd1/run/$1" org.agentd1.Run "$2" | jq -r .data; }
execute() {
        local reply
        reply=$(manager ExecuteAgent 'ssa{sv}' "$AGENT" "$1" 0)
        basename "$(jq -r '.data[0]' <<<"$reply")"
}
# The signal may come before we listen, so the property is what counts, and it is looked at after each signal and each second.
wait_run() {
        local deadline=$((SECONDS + 60))
        until [ "$(property "$1" State)" = finished ]; do
                [ $SECONDS -lt $deadline ] || fail "Run $1 is still $(property "$1" State) after a minute."
                timeout 1 busctl wait /org/agentd1 org.agentd1.Manager RunFinished >/dev/null 2>&1 || true
        done
}
receipt() { manager GetReceipt s "$1" | jq -r '.data[0]'; }
pids_of() {
        local group
        [ -n "$1" ] || return 0
        group=$(systemctl show -P ControlGroup "$1") || return 0
        [ -z "$group" ] || cat "/sys/fs/cgroup$group/cgroup.procs" 2>/dev/null || true
}
# Prints the process of the analyst of a run that was told to hold, once it does.
wait_held() {
        local pid deadline=$((SECONDS + 60))
        while [ $SECONDS -lt $deadline ]; do
                for pid in $(pids_of "$(property "$1" Unit)"); do
                        if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = python3 ] && [ -e "/proc/$pid/root/tmp/holding" ]; then
                                echo "$pid"
                                return
                        fi
                done
                [ "$(property "$1" State)" != finished ] || fail "Run $1 has ended early: $(property "$1" Message)"
                sleep 0.05
        done
        fail "Run $1 does not come to its hold."
}
# request PID TOKEN-FILE: what the bridge answers to a request out of the network namespace of process PID.
request() {
        local header=()
        [ -z "$2" ] || header=(-H @-)
        { [ -z "$2" ] || printf 'Authorization: Bearer %s\n' "$(<"$2")"; } |
                nsenter --net="/proc/$1/ns/net" curl -sS -m 10 -o /dev/null -w '%{http_code}' "${header[@]}" \
                        http://127.0.0.1:8377/v1/run
}
refused() {
        local rc=0
        curl -sS -m 5 -o /dev/null http://127.0.0.1:8377/v1/run 2>/dev/null || rc=$?
        equal "curl: $rc" "curl: 7" # could not connect
}
is_png() { equal "$(head -c 8 "$1" | od -An -tx1 | tr -d ' \n')" 89504e470d0a1a0a; }
png_size() { od -An -j 16 -N 8 -tu1 "$1" | awk '{ print $1*16777216+$2*65536+$3*256+$4 " × " $5*16777216+$6*65536+$7*256+$8 }'; }
succeeded() { [ "$(property "$1" Result)" = success ] || { property "$1" Result; property "$1" Message; return 1; }; }
gone() { [ ! -e "$1" ] || { echo "$1 is still there"; return 1; }; }

[ "$(id -u)" = 0 ] || fail "The demo has to run as root."
for tool in agentctl busctl jq openssl curl nsenter node python3; do
        command -v $tool >/dev/null || fail "The demo needs $tool."
done
IMAGE=$MATERIAL/rootfs.tar
[ -e "$IMAGE" ] || IMAGE=$MATERIAL/analyst-rootfs.tar
for f in "$IMAGE" "$MATERIAL/node_modules/oidc-provider" "$MATERIAL/node_modules/vega-datasets/data/stocks.csv"; do
        [ -e "$f" ] || fail "There is no $f; ./dev demo makes it."
done

trap cleanup EXIT
cleanup
install -d -m 0700 "$WORK"
umask 077
started=$SECONDS

printf '%sA stock analyst that never sees its credential%s\n' "$BOLD" "$OFF"

# The longest part by far, so it goes on beside the next step.
importing=
if ! agentctl --json=short image list | grep -q '"analyst-base"'; then
        agentctl --quiet image import analyst-base "$IMAGE" >"$WORK/import.out" 2>&1 &
        importing=$!
fi

step "Upstream: an authorization server and a market-data API, over TLS"
cd "$WORK"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=agentd demo CA" \
        -keyout ca.key -out ca.crt 2>/dev/null
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
        -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE \
        -CA ca.crt -CAkey ca.key -keyout tls.key -out tls.crt 2>/dev/null
install -D -m 0644 ca.crt "$CA"
quietly update-ca-certificates
install -d -m 0755 "${DROPIN%/*}"
printf '[Upstream]\nAllowAddresses=127.0.0.0/8\n' >"$DROPIN"
chmod 0644 "$DROPIN"
openssl rand -hex 24 >client-secret
cp -r "$HERE/auth-server" "$HERE/market-api" .
ln -s "$MATERIAL/node_modules" node_modules
server() {
        quietly systemd-run --quiet --unit="$1" -p Type=notify -p NotifyAccess=all -p TimeoutStartSec=30 \
                -E PORT="$3" -E ISSUER=https://localhost:9443 -E RESOURCE=https://localhost:8443 \
                -E CLIENT_ID="$(jq -r .auth.client_id "$HERE/service.json")" -E CLIENT_SECRET_FILE="$WORK/client-secret" \
                -E ISSUED_FILE="$WORK/issued" -E STOCKS_CSV="$MATERIAL/node_modules/vega-datasets/data/stocks.csv" \
                -E TLS_CERT="$WORK/tls.crt" -E TLS_KEY="$WORK/tls.key" -E NODE_EXTRA_CA_CERTS="$WORK/ca.crt" \
                node "$WORK/$2/server.mjs"
}
server agentd-demo-auth auth-server 9443 &
auth=$!
server agentd-demo-market market-api 8443
wait $auth
say "https://localhost:9443 issues access tokens (oidc-provider), https://localhost:8443 has the prices"
claim "the API answers 401 to whoever has no token" \
        equal "$(curl -sS -o /dev/null -w '%{http_code}' https://localhost:8443/prices/AAPL)" 401

step "Setting up: image, service, credential, agent"
# As it was before, where the demo has run before. Read at their start: certificates and settings.
agentctl --quiet agent remove $AGENT >/dev/null 2>&1 || true
agentctl --quiet service remove market-data >/dev/null 2>&1 || true
systemctl try-restart agent-bridged.service agent-credentiald.service
say "agentctl image import analyst-base rootfs.tar"
if [ -n "$importing" ]; then
        rc=0
        wait "$importing" || rc=$?
        importing=
        quote <import.out
        [ $rc = 0 ] || fail "The image could not be imported."
fi
say "agentctl service add service.json; agentctl credential set market-data <client-secret"
quietly agentctl --quiet service add "$HERE/service.json"
quietly agentctl --quiet credential set market-data <client-secret
say "agentctl agent create install.json; agentctl run --keep --wait $AGENT --input-file analyst.py"
quietly agentctl --quiet agent create "$HERE/install.json"
agentctl --json=short run --keep --wait "$AGENT" --input-file "$HERE/analyst.py" >run.json 2>run.err || {
        cat run.err run.json | tail -n 10 | quote
        fail "The program could not be laid into the environment."
}
install_run=$(agentctl --json=short runs --agent $AGENT --lines 1 | grep -oE '\b[0-9a-f]{32}\b' | head -n 1)
say "agentctl env freeze $AGENT --from-run $install_run; agentctl agent update agent.json"
shown agentctl --quiet env freeze $AGENT --from-run "$install_run" --note "analyst.py"
quietly agentctl --quiet agent update "$HERE/agent.json"
shown agentctl --no-pager env log $AGENT

step "Twice: busctl call org.agentd1 /org/agentd1 org.agentd1.Manager ExecuteAgent 'ssa{sv}' $AGENT …"
say "${DIM}$QUESTION${OFF}"
run_a=$(execute "$QUESTION")
wait_run "$run_a"
run_b=$(execute "$QUESTION")
wait_run "$run_b"
for run in "$run_a" "$run_b"; do
        claim "run $run: success" succeeded "$run"
done
receipt "$run_a" >a.json
receipt "$run_b" >b.json
claim "both started from the same environment: $(jq -r .environment a.json)" \
        equal "$(jq -r .environment a.json)" "$(jq -r .environment b.json)"
manager GetResult s "$run_b" | jq -r '.data[0]' >result.json
say "the result:"
jq .output result.json | quote
claim "it is AAPL, as the data say" equal "$(jq -r .output.best result.json)" AAPL

step "The receipt"
jq '{run, user, agent, trigger, environment, runner, policy, attempts, unit, result, message, times, steps, usage, artifacts}' b.json | quote
say "calls through the bridge:"
jq -r '.calls[] | "\(.method) \(.service)\(.path) → \(.status), \(.response_bytes) bytes, \(.duration_usec / 1000 | floor) ms"' b.json | quote
claim "five calls were bridged, and all answered 200" \
        equal "$(jq -c '[.calls[].status]' b.json)" '[200,200,200,200,200]'

step "The chart, on the host"
chart=/var/lib/agentd/artifacts/$run_b/chart.png
claim "$chart is a PNG ($(png_size "$chart" 2>/dev/null))" is_png "$chart"
claim "both runs drew the same picture" cmp "$chart" "/var/lib/agentd/artifacts/$run_a/chart.png"

step "Where the access token is not"
run_c=$(execute "$HELD")
run_d=$(execute "$HELD")
pid_c=$(wait_held "$run_c")
pid_d=$(wait_held "$run_d")
unit_c=$(property "$run_c" Unit)
unit_d=$(property "$run_d" Unit)
say "run $run_c has called the API and is held; its sandbox is searched from outside:"
cp "/proc/$pid_c/root/run/credentials/$unit_c/token" token-c
cp "/proc/$pid_d/root/run/credentials/$unit_d/token" token-d
rc=0
python3 "$HERE/scan.py" "$unit_c" "$run_c" "access tokens ($(wc -l <issued) issued)=issued" \
        "client secret=client-secret" --control "the run's own token=token-c" >scan.out 2>&1 || rc=$?
quote <scan.out
claim "no access token in environment, files, /proc or memory; the search finds what is there" equal $rc 0

step "Who can reach the bridge"
claim "from the host, nobody listens on 127.0.0.1:8377" refused
claim "in the run's network namespace, without a token: 401" equal "$(request "$pid_c" '')" 401
claim "in the run's network namespace, with its token: 200" equal "$(request "$pid_c" token-c)" 200
claim "with its token in another live run's namespace: 401" equal "$(request "$pid_d" token-c)" 401

step "After the run's end"
kill -USR1 "$pid_c"
wait_run "$run_c"
claim "run $run_c: success" succeeded "$run_c"
claim "its listener and network namespace are gone" gone "/run/agentd/runs/$run_c"
claim "its token is refused where another run still listens: 401" equal "$(request "$pid_d" token-c)" 401
claim "that run's own token is still good there: 200" equal "$(request "$pid_d" token-d)" 200
kill -USR1 "$pid_d"
wait_run "$run_d"
claim "run $run_d: success" succeeded "$run_d"
claim "its token is dead too: nothing of it is left" gone "/run/agentd/runs/$run_d"

printf '\n%sAll claims hold%s (%d s).\n' "$BOLD$GREEN" "$OFF" $((SECONDS - started))
