"""librdkafka's messages as columns, in compiled code: 0.3 µs an event in the place of 2.

Compiled at the first call and kept on disk; addresses of C functions are arguments, so that this can be.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from totalorder.streaming.cut.librdkafka import Addresses, Functions, library

P = ParamSpec("P")
R = TypeVar("R")
Ints = npt.NDArray[np.int64]
Sums = npt.NDArray[np.uint32]

# Bytes from a message's begin (rd_kafka_message_t).
_TOPIC, _PARTITION, _VALUE, _SIZE, _KEY, _KEY_SIZE, _OFFSET = 8, 16, 24, 32, 40, 48, 56
_LANES = 16
_POLYNOMIAL = 0xEDB88320


def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written to
        return numba.njit(nogil=True)(function)


def _tables() -> Sums:
    """Table k tells what a byte makes of a crc32 that k zero bytes follow."""
    tables = np.zeros((_LANES, 256), dtype=np.uint32)
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), first >> np.uint32(1))
    tables[0] = first
    for lane in range(1, _LANES):
        tables[lane] = (tables[lane - 1] >> np.uint32(8)) ^ first[tables[lane - 1] & 0xFF]
    return tables


TABLES = _tables()


class Columns(NamedTuple):
    """Of a batch of messages; `named` is the address of what names the pub/sub topic, 0 for none, `named_size` its
    length. `begin` has the places at which another topic, partition or kind of message begins, as many as `runs`.
    """

    offset: Ints
    timestamp_ms: Ints
    crc: Ints
    named: Ints
    named_size: Ints
    begin: Ints

    @classmethod
    def of_size(cls, size: int) -> "Columns":
        """Room for so many messages."""
        return cls(*(np.zeros(size, dtype=np.int64) for _ in cls._fields))


# --- what C and memory give -------------------------------------------------------------------------------------------


def _built(generator: Callable[..., Any]) -> Any:
    """An intrinsic, of which the first argument is numba's own."""
    return intrinsic(generator)


def _loader(bits: int) -> Any:
    @_built
    def load(_context: Any, _address: Any) -> Any:
        """The number at an address, which need not be a multiple of its size."""

        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            return builder.load(pointer, align=1)

        return getattr(types, "uint64" if bits == 64 else f"uint{bits}")(types.uint64), generate

    return load


_load_8, _load_32, _load_64 = _loader(8), _loader(32), _loader(64)


def _caller(result: Any, arguments: int) -> Any:
    c_result = {types.int64: ir.IntType(64), types.int32: ir.IntType(32), types.void: ir.VoidType()}[result]

    def generate(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        kind = ir.FunctionType(c_result, [ir.IntType(64)] * arguments)
        called = builder.call(builder.inttoptr(given[0], kind.as_pointer()), given[1:])
        return called if result != types.void else context.get_dummy_value()

    return generate


@_built
def _call_timestamp(_context: Any, _function: Any, _message: Any, _kind: Any) -> Any:
    return types.int64(types.uint64, types.uint64, types.uint64), _caller(types.int64, 2)


@_built
def _call_headers(_context: Any, _function: Any, _message: Any, _headers: Any) -> Any:
    return types.int32(types.uint64, types.uint64, types.uint64), _caller(types.int32, 2)


@_built
def _call_last(_context: Any, _function: Any, _headers: Any, _name: Any, _value: Any, _size: Any) -> Any:
    return types.int32(*(types.uint64,) * 5), _caller(types.int32, 4)


@_built
def _call_destroy(_context: Any, _function: Any, _message: Any) -> Any:
    return types.void(types.uint64, types.uint64), _caller(types.void, 1)


# --- compiled ---------------------------------------------------------------------------------------------------------


@_compiled
def _crc32(tables: Sums, at: np.uint64, size: np.uint64) -> np.uint32:
    """zlib's crc32 of the bytes at an address, sixteen at a time."""
    crc, end = np.uint32(0xFFFFFFFF), at + size
    byte = np.uint32(0xFF)
    while end - at >= np.uint64(16):
        a, b = _load_32(at) ^ crc, _load_32(at + np.uint64(4))
        c, d = _load_32(at + np.uint64(8)), _load_32(at + np.uint64(12))
        crc = (
            (tables[15, a & byte] ^ tables[14, (a >> 8) & byte] ^ tables[13, (a >> 16) & byte] ^ tables[12, a >> 24])
            ^ (tables[11, b & byte] ^ tables[10, (b >> 8) & byte] ^ tables[9, (b >> 16) & byte] ^ tables[8, b >> 24])
            ^ (tables[7, c & byte] ^ tables[6, (c >> 8) & byte] ^ tables[5, (c >> 16) & byte] ^ tables[4, c >> 24])
            ^ (tables[3, d & byte] ^ tables[2, (d >> 8) & byte] ^ tables[1, (d >> 16) & byte] ^ tables[0, d >> 24])
        )
        at += np.uint64(16)
    while at < end:
        crc = (crc >> np.uint32(8)) ^ tables[0, (crc ^ np.uint32(_load_8(at))) & byte]
        at += np.uint64(1)
    return crc ^ np.uint32(0xFFFFFFFF)


@_compiled
def _read(
    messages: Addresses,
    functions: Functions,
    by_key: bool,
    header: np.uint64,
    room: np.uint64,
    tables: Sums,
    columns: Columns,
) -> int:
    """Fills the columns for all messages; the number of runs. `header`: address of its name, 0 for none; `room`: of
    three words for C to write to.
    """
    runs, last_topic, last_partition, last_error = 0, np.uint64(0), np.uint32(0), True
    for at in range(len(messages)):
        message = messages[at]
        topic, partition = _load_64(message + np.uint64(_TOPIC)), _load_32(message + np.uint64(_PARTITION))
        error = _load_32(message) != 0
        if error or last_error or topic != last_topic or partition != last_partition:
            columns.begin[runs] = at
            runs += 1
            last_topic, last_partition, last_error = topic, partition, error
        value = _load_64(message + np.uint64(_VALUE))
        columns.offset[at] = np.int64(_load_64(message + np.uint64(_OFFSET)))
        columns.timestamp_ms[at] = columns.named[at] = columns.named_size[at] = columns.crc[at] = 0
        if error:
            continue
        columns.timestamp_ms[at] = _call_timestamp(np.uint64(functions.timestamp), message, room)
        if value != 0:
            columns.crc[at] = np.int64(_crc32(tables, value, _load_64(message + np.uint64(_SIZE))))
        if by_key:
            columns.named[at] = np.int64(_load_64(message + np.uint64(_KEY)))
            columns.named_size[at] = np.int64(_load_64(message + np.uint64(_KEY_SIZE)))
        if header != 0 and _call_headers(np.uint64(functions.headers), message, room) == 0:
            of_value, of_size = room + np.uint64(8), room + np.uint64(16)
            if _call_last(np.uint64(functions.last_header), _load_64(room), header, of_value, of_size) == 0:
                columns.named[at] = np.int64(_load_64(of_value))
                columns.named_size[at] = np.int64(_load_64(of_size))
    return runs


@_compiled
def _destroy(messages: Addresses, function: int) -> None:
    for at in range(len(messages)):
        _call_destroy(np.uint64(function), messages[at])


# --- for the reader ---------------------------------------------------------------------------------------------------


class Named(NamedTuple):
    """What names an event's pub/sub topic: its key, or the header with the name at this address; else neither."""

    by_key: bool
    header: int


def read(messages: Addresses, named: Named, room: Addresses, columns: Columns) -> int:
    """Fills the columns for all messages, which stay; the number of runs. `room` are three words."""
    header, three_words = np.uint64(named.header), np.uint64(room.ctypes.data)
    return int(_read(messages, library().functions, named.by_key, header, three_words, TABLES, columns))


def destroy(messages: Addresses) -> None:
    """Gives the messages back to librdkafka; their addresses are good for nothing from then on."""
    _destroy(messages, library().functions.destroy)


def warm() -> None:
    """Compiles, or loads what was compiled; EnvironmentProblem where librdkafka cannot be called directly."""
    none, room = np.zeros(0, dtype=np.uint64), np.zeros(3, dtype=np.uint64)
    read(none, Named(False, 0), room, Columns.of_size(0))
    destroy(none)
