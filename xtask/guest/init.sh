#!/bin/busybox sh
# The guest of `cargo xtask vm-test`: records a known program and writes what it finds to the
# second serial port, in sections the host can tell apart. The first port is the console.
export PATH=/bin
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
stty -F /dev/ttyS1 raw -echo

section() {
    name=$1
    shift
    echo "@@@ begin $name $(cut -d ' ' -f 1 /proc/uptime)"
    "$@"
    status=$?
    echo
    echo "@@@ end $name $status"
}

second=/sys/devices/system/cpu/cpu1/online

# Where strata's threads are, for the console, before the guest is stopped for being late.
late() {
    sleep 500
    for task in /proc/[0-9]*/task/[0-9]*; do
        case $(cat $task/comm) in
        strata* | known) ;;
        *) continue ;;
        esac
        echo "$task $(cat $task/comm) $(cut -d ')' -f 2 $task/stat | cut -c 1-2) $(cat $task/wchan)"
    done
}

everything() {
    section release uname -r
    if [ -e /bin/strata ]; then
        section doctor strata doctor
        section record strata record --frequency 199 --output /tmp/child.folded -- /bin/known 5
        section child cat /tmp/child.folded

        # The same from outside: a program that was there before, among everything else.
        known 60 >/dev/null &
        section record-host strata record --frequency 199 --duration 4 --output /tmp/host.folded
        section host cat /tmp/host.folded
        kill %1

        # What strata may do while it records, and its helpers.
        section rights sh -c 'strata record --frequency 19 --duration 60 --output /tmp/all.folded &
            pid=$!
            for second in $(seq 30); do
                sleep 1
                ! grep -q "^Name:.strata-broker" /proc/[0-9]*/status || break
            done
            sleep 3
            cat /proc/sys/kernel/perf_event_paranoid
            for status in /proc/[0-9]*/status; do
                ! grep -q "^Name:.strata" $status || grep -E "^(Name|CapEff|CapPrm):" $status
            done
            kill -INT $pid
            wait $pid'

        # What waits instead.
        # An emulated CPU is so slow that walking stacks takes the whole budget at times: waits are
        # then chosen by chance, and this one may be left out.
        section record-waits sh -c 'for attempt in 1 2 3 4; do
                rm -f /tmp/waits.folded
                strata record -e off_cpu --output /tmp/waits.folded -- sleep 2 || exit
                ! grep -q hrtimer_nanosleep /tmp/waits.folded || exit 0
            done'
        section waits cat /tmp/waits.folded
        section record-wall strata record -e wall --output /tmp/wall.folded -- sleep 2
        section wall cat /tmp/wall.folded

        # On a CPU that was switched off and on again meanwhile.
        section record-switched strata record --frequency 199 --output /tmp/switched.folded \
            -- sh -c "set -e; sleep 1; echo 0 >$second; sleep 2; echo 1 >$second; sleep 3
                taskset 2 known 5"
        section switched cat /tmp/switched.folded
    else
        section known known 1
    fi
    echo "@@@ done"
}

late >/dev/ttyS0 2>&1 &

# Through a pipe, so that strata does not take the port for a terminal.
everything 2>&1 | cat >/dev/ttyS1
poweroff -f
