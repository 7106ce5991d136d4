"""Two hosts whose network fails: namespaces of this machine with a link of their own. Needs root
and `ip` (iproute2).

    python -m benchmarks.chaos_network [--folder DIR] [--out results/chaos_network.json]

A driver, Ray's head and one worker run on the first host, another worker on the second. In one
sweep the link is cut for a minute and heals; in another one it loses 30 % of all packets. Ray keeps
its own health checks. Images and fronts are compared as in `benchmarks.chaos`.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks.chaos import undisturbed
from benchmarks.chaos_cluster import Cluster, Host
from benchmarks.chaos_sweep import METRICS, SWEEP, ChaosSweep
from benchmarks.sweep_results import Comparison, compare

CUT_S = 60.0
LOSS = 0.3
TRIALS = 16
_NETWORK = "10.213.77"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # of Linux's if_tun.h
_MAX_PACKET_BYTES = 1 << 16


class NoNamespaces(RuntimeError):
    """This process may not make network namespaces, or iproute2 is missing; the message says
    which.
    """


class Link:
    """The network between two hosts: a thread that passes packets from one tunnel device to the
    other, or drops them.

    loss: share of packets that are dropped at random in each direction; 1 is a link that was cut.
    """

    def __init__(self, hosts: tuple[Host, Host], seed: int = 0) -> None:
        """Raises NoNamespaces if this process may not make devices."""
        self.hosts, self.loss, self.passed, self.dropped = hosts, 0.0, 0, 0
        self._rng = random.Random(seed)
        self._files = [self._open(host) for host in hosts]
        self._wake, self._closed = os.pipe()
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.close(self._closed)
        self._thread.join()
        for file in (*self._files, self._wake):
            os.close(file)

    def _open(self, host: Host) -> int:
        """A tunnel device, moved to the host's namespace; reading its file gives the packets that
        the host sends.
        """
        name = f"tun{host.namespace}"
        try:
            file = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
        except OSError as error:
            raise NoNamespaces(f"/dev/net/tun: {error}") from error
        _run("ip", "link", "set", name, "netns", host.namespace)
        _run("ip", "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", name)
        _run("ip", "-n", host.namespace, "link", "set", name, "up")
        return file

    def _relay(self) -> None:
        first, second = self._files
        other = {first: second, second: first}
        while True:
            ready, _, _ = select.select([first, second, self._wake], [], [])
            if self._wake in ready:
                return
            for file in ready:
                packet = os.read(file, _MAX_PACKET_BYTES)
                if self._rng.random() < self.loss:
                    self.dropped += 1
                else:
                    self.passed += 1
                    os.write(other[file], packet)


@contextmanager
def two_hosts() -> Iterator[Link]:
    """Two namespaces with addresses on one link, which exist while the block runs.

    Raises:
        NoNamespaces: without root or iproute2.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise NoNamespaces("network namespaces need root, and the command ip (Debian's iproute2)")
    hosts = tuple(Host(f"{_NETWORK}.{n}", f"sf{os.getpid()}{'ab'[n - 1]}") for n in (1, 2))
    with ExitStack() as stack:
        for host in hosts:
            _run("ip", "netns", "add", host.namespace)
            stack.callback(_run, "ip", "netns", "delete", host.namespace)
            _run("ip", "-n", host.namespace, "link", "set", "lo", "up")
        yield stack.enter_context(closing(Link((hosts[0], hosts[1]))))


def _run(*words: str) -> None:
    """Raises NoNamespaces if the command fails."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise NoNamespaces(f"{' '.join(words)}: {done.stderr.strip()}")


def cut_link(sweep: ChaosSweep, link: Link) -> None:
    link.loss = 1.0
    time.sleep(CUT_S)
    link.loss = 0.0
    sweep.wait_delivering()


def lose_packets(sweep: ChaosSweep, link: Link) -> None:
    link.loss = LOSS
    sweep.wait_delivering()


CASES: Mapping[str, Callable[[ChaosSweep, Link], None]] = {
    f"link cut for {CUT_S:.0f} s": cut_link,
    f"{LOSS:.0%} of packets lost": lose_packets,
}


def network_chaos(
    folder: Path, text: str, trials: int, happen: Callable[[ChaosSweep, Link], None]
) -> tuple[Comparison, float]:
    """A sweep on two hosts whose link fails, compared with the same sweep undisturbed; the share of
    packets dropped.

    Raises:
        NoNamespaces: see `two_hosts`.
        ChaosError: the sweep hangs, or its driver ends.
    """
    disturbed = folder / happen.__name__
    shutil.rmtree(disturbed, ignore_errors=True)
    disturbed.mkdir(parents=True)
    with ExitStack() as stack:
        link = stack.enter_context(two_hosts())
        first, second = link.hosts
        cluster = Cluster((first, first, second), health_checks={})
        stack.callback(cluster.stop)
        cluster.start()
        sweep = ChaosSweep(disturbed / "disk", text, trials, cluster, host=first)
        stack.callback(sweep.stop)
        sweep.launch()
        sweep.wait_delivering()
        happen(sweep, link)
        sweep.wait_to_end()
    calm = undisturbed(folder / "undisturbed", text, trials)
    return compare(calm, sweep.store, METRICS), link.dropped / (link.dropped + link.passed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="keeps the sweeps; default: a temporary folder")
    parser.add_argument("--out", type=Path, help="a JSON file for the outcome")
    args = parser.parse_args()
    # so that nothing is left behind
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    found, clean = {}, True
    with tempfile.TemporaryDirectory() as temporary:
        for name, happen in CASES.items():
            start = time.monotonic()
            try:
                result, dropped = network_chaos(
                    args.folder or Path(temporary), SWEEP, TRIALS, happen
                )
            except NoNamespaces as error:
                sys.exit(f"not run: {error}")
            clean &= result.is_clean
            found[name] = asdict(result) | {"dropped": dropped, "seconds": time.monotonic() - start}
            print(f"{name} ({dropped:.0%} of all packets dropped): {result.describe()}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if clean else 1)


if __name__ == "__main__":
    main()
