#pragma once
// Independent pieces of work, shared among a few threads.

#include <cstddef>
#include <functional>

namespace tetra {

/// Calls task(0) to task(count - 1), each once, on up to `threads` threads, this one among them. Throws the first
/// exception after all threads have stopped.
void run_tasks(size_t count, int threads, const std::function<void(size_t)>& task);

/// Threads that are worth having beside each other for reading files.
int reading_threads();

}  // namespace tetra
