# Runs in a guest (tests/guest/run): each command that a test puts into /run/out (driven_guest.py), beside those before it.
# NUMBER.command is a script for bash; NUMBER.out and NUMBER.err are what it writes, and NUMBER.code is there once it has ended.
cd /run/out || exit
number=1
touch ready
until [ -e over ]; do
    if [ -e "$number.command" ]; then
        (
            bash "$number.command" >"$number.out" 2>"$number.err"
            echo "$?" >"$number.code.new"
            mv "$number.code.new" "$number.code"
        ) &
        number=$((number + 1))
    else
        sleep 0.05
    fi
done
wait
exit 0
