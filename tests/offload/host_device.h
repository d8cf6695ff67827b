#pragma once
// A device of the tests' own: memory of the host under another name, whose operations run on the CPU after copies both
// ways. What works here moves between devices by the rules. A program of its own, since a process has one such device.

#include <c10/core/Device.h>

namespace tetra::testing {

c10::Device host_device();

/// Bytes that live on it now.
int64_t host_device_bytes();

}  // namespace tetra::testing
