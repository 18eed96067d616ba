# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash
#
# The test suites. Each leaves JUnit reports, from which tests are counted: a test counts as passed only when a report
# says so. A suite that cannot run on this host counts as one skipped test, and says why; one that ran nothing though
# nothing was selected, or whose runner failed without naming a failed test, counts as one failed.

ALL_SUITES=(unit fuzz bus system vm)
PASSED=0 FAILED=0 SKIPPED=0

# Counts the reports given, for a runner that ended with STATUS.
count_reports() {
        local suite=$1 status=$2 p f s
        shift 2
        # Tests that -k leaves out are skipped ones for node; not for us.
        read -r p f s < <(cat "$@" /dev/null 2>/dev/null | awk -v RS='<testcase[ >]' '
                NR == 1 || /does not match pattern/ { next }
                /<(failure|error)[ >]/ { f++; next }
                /<skipped[ \/>]/ { s++; next }
                { p++ }
                END { print p + 0, f + 0, s + 0 }')
        if [ "$status" != 0 ] && [ "$f" = 0 ]; then
                say "$suite: the runner ended with status $status, but no report names a failed test"
                f=1
        elif [ $((p + f + s)) = 0 ] && [ -z "$PATTERN" ]; then
                say "$suite: not one test ran"
                f=1
        fi
        say "$suite: passed $p, failed $f, skipped $s"
        PASSED=$((PASSED + p)) FAILED=$((FAILED + f)) SKIPPED=$((SKIPPED + s))
}

skip_suite() {
        say "$1: skipped: $2"
        SKIPPED=$((SKIPPED + 1))
}

# unit and fuzz: what meson knows under that name.
suite_meson() {
        local suite=$1 rc=0 select=() reports=("$BUILD/work/meson-logs/testlog.junit.xml")
        [ -e "$CHECKOUT/meson.build" ] || { skip_suite "$suite" "there is no meson.build"; return; }
        lock "build-${BUILD##*/}"
        # shellcheck disable=SC2016 # expanded in the root
        in_root --net -- /bin/sh -c '
                suite=$1 pattern=$2 multiplier=$3
                cd /build && rm -f meson-logs/testlog.junit.xml
                # Selecting nothing is no error of meson'"'"'s; say it by leaving no report.
                if [ -n "$pattern" ]; then
                        meson introspect --tests | jq -r --arg s "$suite" --arg p "$pattern" \
                                ".[] | select(any(.suite[]; . == \$s or endswith(\":\" + \$s))) | .name | select(contains(\$p))" >names
                        [ -s names ] || exit 0
                        xargs -d "\n" meson test --no-rebuild --print-errorlogs --suite "$suite" \
                                --timeout-multiplier "$multiplier" <names
                else
                        meson test --no-rebuild --print-errorlogs --suite "$suite" --timeout-multiplier "$multiplier"
                fi
        ' suite "$suite" "$PATTERN" "$([ -n "$SANITIZE" ] && echo 20 || echo 10)" || rc=$?
        # The runner's own tests are node's, and want nothing but a loopback.
        if [ "$suite" = unit ] && compgen -G "$CHECKOUT/tests/runner/*.test.mjs" >/dev/null; then
                reports+=("$BUILD/work/runner.xml")
                rm -f "$BUILD/work/runner.xml"
                [ -z "$PATTERN" ] || select=(--test-name-pattern="$PATTERN")
                in_root --net -- /bin/bash -o pipefail -c 'node --test --test-reporter=spec \
                        --test-reporter-destination=stdout --test-reporter=junit \
                        --test-reporter-destination=/build/runner.xml "$@" /src/tests/runner/*.test.mjs |
                        sed "/does not match pattern/d"' runner "${select[@]}" || rc=$?
        fi
        count_reports "$suite" "$rc" "${reports[@]}"
        unlock
}

pytest_command() {
        PYTEST=(timeout --kill-after=30 14400 python3 -m pytest -p no:cacheprovider -ra --tb=short --timeout=3600
                --junitxml="$2" "/src/tests/$1")
        [ -z "$PATTERN" ] || PYTEST+=(-k "$PATTERN")
}

# 5 is pytest's "no test selected".
pytest_status() {
        if [ "$1" = 5 ] && [ -n "$PATTERN" ]; then echo 0; else echo "$1"; fi
}

suite_bus() {
        local rc=0 out
        [ -d "$CHECKOUT/tests/bus" ] || { skip_suite bus "there is no tests/bus"; return; }
        scratch_new out
        mkdir "$out/out"
        pytest_command bus /mnt/out/bus.xml
        in_root --net "+$out/out:/mnt/out" -- env "${SANITIZE_ENV[@]}" "${PYTEST[@]}" || rc=$?
        count_reports bus "$(pytest_status "$rc")" "$out/out/bus.xml"
}

suite_system() {
        local rc=0 dir why
        [ -d "$CHECKOUT/tests/system" ] || { skip_suite system "there is no tests/system"; return; }
        if ! why=$(nspawn_obstacle); then
                skip_suite system "$why"
                return
        fi
        run ensure test_image "the tests' image" || exit 1
        run ensure npm "npm packages" || say "system: without npm packages; what needs other versions of node is skipped"
        machine_boot "agentd-t$$" dir
        pytest_command system /mnt/out/system.xml
        # shellcheck disable=SC2034 # for machine_enter
        ENTER_ENV=("${SANITIZE_ENV[@]}" AGENTD_MIRROR="$MIRROR" AGENTD_KILLS="${AGENTD_KILLS:-}"
                AGENTD_KILLS_SEED="${AGENTD_KILLS_SEED:-}" AGENTD_TEST_ORDER="${AGENTD_TEST_ORDER:-}")
        run machine_enter "$dir" "${PYTEST[@]}" || rc=$?
        count_reports system "$(pytest_status "$rc")" "$dir/out/system.xml"
        local before=$FAILED
        [ -z "$SANITIZE" ] || sanitize_findings "$dir"
        if [ "$rc" != 0 ] && [ "$rc" != 5 ] || [ "$FAILED" != "$before" ]; then
                say "journal and units of the machine: $(machine_keep_logs "$dir")"
        fi
        machine_destroy "$dir"
}

# --- sanitizers -------------------------------------------------------------------------------------------------

SANITIZE=
SANITIZE_ENV=()

sanitize_on() {
        SANITIZE=1
        # Programs that tests start themselves report to files that anyone can write; the daemons report to stderr,
        # which is the journal.
        SANITIZE_ENV=(
                ASAN_OPTIONS=detect_leaks=1:log_path=/var/tmp/sanitizer/report
                UBSAN_OPTIONS=print_stacktrace=1:log_path=/var/tmp/sanitizer/report
                LSAN_OPTIONS=report_objects=1
                AGENTD_SANITIZE=1
        )
}

# Drop-ins for our programs' units: where findings go, and less hardening only where the sanitizers need it. Their leak
# check stops the process by ptrace; what they add to memory is not ours.
sanitize_layer() {
        local unit d units=${STAGE:-/nonexistent}/usr/lib/systemd/system filter
        mkdir -p "$1/etc/tmpfiles.d"
        echo 'd /var/tmp/sanitizer 1777 root root -' >"$1/etc/tmpfiles.d/sanitizer.conf"
        # agent-op-*: the transient units in which agentd has images made; of their filters, some are there and some not.
        # Not agent-run-*: those are the agents'.
        for unit in "$units"/agent*.service agent-op-.service; do
                filter=
                if [ "$unit" = agent-op-.service ]; then
                        filter=$'SystemCallFilter=\nStandardError=journal' # else it follows standard output, a pipe
                elif ! grep -q '^ExecStart=/usr/lib/agentd/' "$unit" 2>/dev/null; then
                        continue
                elif grep -q '^SystemCallFilter=' "$unit"; then
                        filter=SystemCallFilter=ptrace
                fi
                d=$1/etc/systemd/system/${unit##*/}.d
                mkdir -p "$d"
                printf '%s\n' '[Service]' 'Environment=ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1' \
                        'MemoryMax=infinity' "$filter" >"$d/sanitize.conf"
        done
}

sanitize_findings() {
        local found=$1/out/sanitizer.txt
        # What leaks is known when a program ends.
        machine_enter "$1" systemctl stop 'agent*.socket' 'agent*.service' || true
        # shellcheck disable=SC2016 # expanded inside
        machine_enter "$1" /bin/sh -c '
                journalctl --no-pager -o short -b | grep -A 15 -E "(ERROR|SUMMARY): [A-Za-z]*Sanitizer|runtime error:|LeakSanitizer has encountered"
                cat /var/tmp/sanitizer/report.* 2>/dev/null
        ' >"$found" || true
        if [ -s "$found" ]; then
                say "the sanitizers found something:"
                head -n 60 "$found" >&2
                FAILED=$((FAILED + 1))
        else
                say "the sanitizers found nothing"
        fi
}

# --- all together -----------------------------------------------------------------------------------------------

cmd_test() {
        local suites=() suite
        PATTERN=
        while [ $# -gt 0 ]; do
                case $1 in
                        --sanitize) sanitize_on ;;
                        -k) [ $# -ge 2 ] || die "-k needs a PATTERN."; PATTERN=$2; shift ;;
                        -k*) PATTERN=${1#-k} ;;
                        unit | fuzz | bus | system | vm) suites+=("$1") ;;
                        *) die "There is no suite '$1'; there are: ${ALL_SUITES[*]}." ;;
                esac
                shift
        done
        [ ${#suites[@]} -gt 0 ] || suites=("${ALL_SUITES[@]}")

        prepare
        local image=
        case " ${suites[*]} " in
                *' system '* | *' vm '*)
                        # While the compiler runs.
                        (ensure test_image "the tests' image") </dev/null &
                        image=$!
                        JOBS+=("$image")
                        ;;
        esac
        build
        if [ -n "$image" ]; then
                wait "$image" || exit 1
                job_forget "$image"
        fi
        for suite in "${suites[@]}"; do
                say "suite $suite"
                case $suite in
                        unit | fuzz) suite_meson "$suite" ;;
                        *) suite_"$suite" ;;
                esac
        done
        if [ $((PASSED + FAILED + SKIPPED)) = 0 ]; then
                say "no test matches '$PATTERN'"
                FAILED=1
        fi
        echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
        [ "$FAILED" = 0 ] || exit 1
        # Nothing but skips is no pass; 77 is what test runners take for a skip.
        [ "$PASSED" != 0 ] || exit 77
}
