#pragma once
// Thread ranks for tests: all ranks in one tp group.

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/error.h"
#include "mesh/fabric.h"
#include "mesh/world.h"

namespace tetra {

inline WorldOptions tp_options(int size) {
  WorldOptions options;
  options.degrees.tp = size;
  options.timeout = std::chrono::seconds(60);
  return options;
}

inline void on_ranks(int size, const std::function<void(World&, const Group&)>& body) {
  run_local_ranks(size, tp_options(size), [&](World& world) { body(world, world.group(Axis::tp)); });
}

/// The message of the Error that `body` must throw.
template <typename Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return {};
}

inline void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

}  // namespace tetra
