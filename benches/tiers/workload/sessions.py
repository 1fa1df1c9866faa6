"""Sessions that a service keeps in memory, as objects of Python.

A session has a page, which has a body of bytes and a link back to its session: a cycle, as in
any tree with links to parents. A request looks a session up and reads the body; one in
ten puts a new session in the old one's place, and the old one is garbage that only the
collector finds. Young garbage is collected as the interpreter sees fit. COLLECTIONS times the
collector looks through everything, at the same requests whatever Python's version.

Nine of ten requests are for the sessions that are hot: groups of neighbours (they were made one
after the other), scattered over all, of which the oldest is now and then replaced by another.

usage: sessions.py SESSIONS REQUESTS, both counts. Of tiers' protocol (mod.rs beside this) it speaks
"ready", then at a line of input it works, writes how many bytes of times follow and those times (nanoseconds of
each request, 64 bits each), and at another line checks all sessions and says "right" or what is
wrong. The seed is fixed.
"""

import gc
import random
import struct
import sys
import time
from array import array

BODY = 3200         # bytes, more than Python's own allocator takes
GROUP = 200         # sessions
HOT_GROUPS = 64     # 12,800 sessions, 43 MiB
DRIFTS = 64         # groups that are replaced: all of them, one after the other
HOT = 0.9           # of requests
CHANGES = 0.1       # of requests
COLLECTIONS = 2
WORD = struct.Struct("<Q")


class Session:
    """What is kept under a key."""

    __slots__ = ("key", "page", "version")

    def __init__(self, key, version):
        self.key = key
        self.version = version
        self.page = Page(self)


class Page:
    """What a session shows, which knows whose it is."""

    __slots__ = ("body", "session")

    def __init__(self, session):
        self.session = session
        self.body = body(session.key, session.version)


def body(key, version):
    """Follows from whose it is."""
    return WORD.pack(key << 32 | version) * (BODY // WORD.size)


def is_right(session, key, version):
    """Whether all of a session is as it was made."""
    page = session.page
    return (
        session.key == key
        and session.version == version
        and page.session is session
        and page.body == body(key, version)
    )


class Service:
    """The sessions, and what is known of them beside."""

    def __init__(self, count):
        self.sessions = {key: Session(key, 0) for key in range(count)}
        self.versions = array("L", bytes(array("L").itemsize * count))
        self.faults = 0

    def serve(self, requests):
        """Serves so many requests, and tells how long each took."""
        sessions, versions = self.sessions, self.versions
        chance = random.Random(13)
        count = len(sessions)
        groups = list(range(0, count - GROUP + 1, GROUP))
        chance.shuffle(groups)
        hot_count = min(HOT_GROUPS, len(groups) // 2)
        hot, others = groups[:hot_count], groups[hot_count:]
        drift_after = max(1, requests // DRIFTS)
        collect_after = max(1, requests // COLLECTIONS)
        times = array("Q")
        now = time.perf_counter_ns
        begin = now()
        for done in range(requests):
            if chance.random() < HOT:
                key = hot[int(chance.random() * hot_count)] + int(chance.random() * GROUP)
            else:
                key = int(chance.random() * count)
            if not is_right(sessions[key], key, versions[key]):
                self.faults += 1
            if chance.random() < CHANGES:
                versions[key] += 1
                sessions[key] = Session(key, versions[key])
            # In the middle of the work, not at its end.
            if done % collect_after == collect_after // 2:
                gc.collect()
            if done % drift_after == drift_after - 1:
                others.append(hot.pop(0))
                hot.append(others.pop(0))
            end = now()
            times.append(end - begin)
            begin = end
        return times

    def wrong(self):
        """What is not as it should be, if anything."""
        gc.collect()
        alive = sum(type(o) is Session for o in gc.get_objects())
        if alive != len(self.sessions):
            return f"{alive} sessions are alive, not {len(self.sessions)}"
        for key, session in self.sessions.items():
            if not is_right(session, key, self.versions[key]):
                self.faults += 1
        return f"{self.faults} sessions were not what was kept" if self.faults else None


def main():
    count, requests = map(int, sys.argv[1:])
    # While the heap is built, everything lives.
    gc.disable()
    service = Service(count)
    gc.collect()
    gc.enable()
    out = sys.stdout.buffer

    def say(line):
        out.write(line.encode() + b"\n")
        out.flush()

    say("ready")
    sys.stdin.readline()
    times = service.serve(requests)
    say(str(len(times) * times.itemsize))
    times.tofile(out)
    out.flush()
    sys.stdin.readline()
    say(service.wrong() or "right")


main()
