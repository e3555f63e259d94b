#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""When did payload leave this host?  packets.py INTERFACE FILE, inside a test host; ends at SIGTERM.

Writes [microseconds of the steady clock, bytes of TCP payload, source port, destination port] for each packet that
leaves: the same clock as that of traces.  The kernel's own time stamps are used.
"""
import json
import signal
import socket
import struct
import sys
import time

ETH_P_ALL, PACKET_OUTGOING, SO_TIMESTAMPNS = 3, 4, 35
HEADERS = 128


def payload_of(packet):
    """(bytes of payload, source port, destination port) of an Ethernet frame with IPv4 and TCP, else None."""
    if len(packet) < 54 or packet[12:14] != b"\x08\x00" or packet[23] != 6:
        return None
    start = 14 + 4 * (packet[14] & 15)
    if len(packet) < start + 13:
        return None
    total = struct.unpack_from("!H", packet, 16)[0]
    source, destination = struct.unpack_from("!HH", packet, start)
    return total - (start - 14) - 4 * (packet[start + 12] >> 4), source, destination


def main():
    interface, path = sys.argv[1:]
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    wire.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    wire.bind((interface, 0))
    wire.settimeout(0.1)
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    offset = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    print("listening", flush=True)
    seen = []
    while not ended:
        try:
            packet, extra, _, address = wire.recvmsg(HEADERS, 256)
        except (TimeoutError, socket.timeout):
            continue
        found = payload_of(packet) if address[2] == PACKET_OUTGOING else None
        if found is None or found[0] <= 0:
            continue
        for level, kind, data in extra:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = struct.unpack("qq", data[:16])
                seen.append([(seconds * 10**9 + nanoseconds - offset) / 1e3, *found])
    with open(path, "w") as file:
        json.dump(seen, file)


if __name__ == "__main__":
    main()
