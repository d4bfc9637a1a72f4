"""The pure protocol of attempts, claims, leases, fences, stops and cleaning.

Three small machines, each ``step(state, event, now_ms, timers) → (state, commands)`` over frozen data:

* ``attempt`` — the server's view of one attempt and its hosts;
* ``job`` — what the job does when its attempt ends, is cancelled or is placed;
* ``host`` — the launcher's view: what it claimed, started, must stop and may forget.

The services persist the first two, the launcher the third, and the simulator runs all three. Times are whole
milliseconds of the clock of the process that runs the machine: the server's wall clock, or the host's boot-time clock.
"""
