#include "train/checkpoint/reader.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "kernels/error.h"
#include "train/checkpoint/file.h"
#include "train/checkpoint/tasks.h"

namespace tetra {
namespace {

#ifndef MADV_POPULATE_READ  // Linux 5.14; older ones refuse it
#define MADV_POPULATE_READ 22
#endif

constexpr int64_t kTask = int64_t{16} << 20;     // bytes that a thread reads at a time
constexpr int64_t kBlock = int64_t{32} << 20;    // of a file, looked at as a whole
constexpr int64_t kLongRun = int64_t{64} << 10;  // a run worth a read of its own
constexpr int64_t kWorthwhile = 8;               // bytes read for one that is wanted, where runs are short

/// Bytes of a file in memory: mapped, which spares a copy, or read where that cannot be. All pages are had at once, so
/// that a file which was cut short is an Error and not the end of the process.
class FileView {
 public:
  FileView(const File& file, int64_t begin, int64_t bytes) {
    const auto end = static_cast<uint64_t>(begin + bytes);
    require(file.size() >= end, "{}: truncated: it has {} bytes, {} are wanted", file.path(), file.size(), end);
    const int64_t ahead = begin % static_cast<int64_t>(kPage);
    size_ = static_cast<size_t>(ahead + bytes);
    map_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.descriptor(), begin - ahead);
    if (map_ != MAP_FAILED && ::madvise(map_, size_, MADV_POPULATE_READ) == 0) {
      data_ = static_cast<const char*>(map_) + ahead;
      return;
    }
    read_.resize(static_cast<size_t>(bytes));
    file.read(read_.data(), read_.size(), static_cast<uint64_t>(begin));
    data_ = read_.data();
  }
  ~FileView() {
    if (map_ != MAP_FAILED) {
      ::munmap(map_, size_);
    }
  }
  FileView(const FileView&) = delete;
  FileView& operator=(const FileView&) = delete;

  const char* data() const { return data_; }

 private:
  void* map_ = MAP_FAILED;
  size_t size_ = 0;
  std::vector<char> read_;
  const char* data_ = nullptr;
};

/// Reads into strided memory from strided places of a file.
class StridedRead {
 public:
  StridedRead(const File& file, const CopyLoops& copy) : file_(file), copy_(copy) {}

  void run(char* to, int64_t from) { run(0, to, from); }

 private:
  void run(size_t outermost, char* to, int64_t from);
  void run_blocks(size_t outermost, char* to, int64_t from);
  int64_t span(size_t outermost) const;

  const File& file_;
  const CopyLoops& copy_;
};

/// Bytes of the file from the first to the last that the loops want.
int64_t StridedRead::span(size_t outermost) const {
  int64_t bytes = 1;
  for (size_t i = outermost; i < copy_.loops.size(); ++i) {
    bytes += (copy_.loops[i].size - 1) * copy_.loops[i].from;
  }
  return bytes;
}

void StridedRead::run(size_t outermost, char* to, int64_t from) {
  const CopyLoops::Loop& loop = copy_.loops[outermost];
  if (outermost + 1 == copy_.loops.size()) {
    file_.read(to, static_cast<uint64_t>(loop.size), static_cast<uint64_t>(from));
    return;
  }
  const int64_t run_bytes = copy_.loops.back().size;
  const bool dense = loop.from <= copy_.bytes(outermost + 1) * kWorthwhile || loop.from <= int64_t{kPage};
  if (run_bytes < kLongRun && dense && loop.from <= kBlock) {
    run_blocks(outermost, to, from);
    return;
  }
  for (int64_t i = 0; i < loop.size; ++i) {
    run(outermost + 1, to + i * loop.to, from + i * loop.from);
  }
}

// Blocks of rows, each mapped or read as a whole.
void StridedRead::run_blocks(size_t outermost, char* to, int64_t from) {
  const CopyLoops::Loop& loop = copy_.loops[outermost];
  const int64_t rows = std::max<int64_t>(1, kBlock / loop.from);
  CopyLoops block = {{copy_.loops.begin() + static_cast<int64_t>(outermost), copy_.loops.end()}};
  for (int64_t begin = 0; begin < loop.size; begin += rows) {
    block.loops[0].size = std::min(rows, loop.size - begin);
    const int64_t bytes = (block.loops[0].size - 1) * loop.from + span(outermost + 1);
    const FileView view(file_, from + begin * loop.from, bytes);
    run_copy(block, to + begin * loop.to, view.data());
  }
}

struct ReadTask {
  const File* file;
  CopyLoops copy;
  char* to;
  int64_t from;
};

int64_t offset_of(const Box& inner, const std::vector<int64_t>& origin, at::IntArrayRef strides) {
  int64_t offset = 0;
  for (size_t i = 0; i < origin.size(); ++i) {
    offset += (inner.offsets[i] - origin[i]) * strides[i];
  }
  return offset;
}

}  // namespace

struct CheckpointReader::State {
  std::string folder;
  CheckpointPlan plan;
  std::mutex mutex;
  std::map<std::string, File> files;  // opened when first read

  std::string path(const std::string& file) const { return folder + "/" + file; }
  const File& file(const std::string& name);
  const PlannedTensor& find(const StatePart& part) const;
  void add_tasks(std::vector<ReadTask>& tasks, const StatePart& part);
};

const File& CheckpointReader::State::file(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = files.find(name);
  return found != files.end() ? found->second : files.emplace(name, File(path(name), O_RDONLY)).first->second;
}

/// The stored tensor; Error unless `part` is a box of it.
const PlannedTensor& CheckpointReader::State::find(const StatePart& part) const {
  const std::string where = path(kPlanFile);
  const auto found = plan.tensors.find(part.name);
  require(found != plan.tensors.end(), "tensor '{}' is missing in {}, which has {} others", part.name, where,
          plan.tensors.size());
  const PlannedTensor& tensor = found->second;
  require(tensor.shape == part.global_shape, "tensor '{}' has shape {} in {}, but {} is wanted", part.name,
          tensor.shape, where, part.global_shape);
  require(part.data.defined() && lies_within({part.offsets, part.data.sizes().vec()}, tensor.shape),
          "tensor '{}': sizes {} at {} are not a box of shape {} ({})", part.name,
          part.data.defined() ? part.data.sizes().vec() : std::vector<int64_t>(), part.offsets, tensor.shape, where);
  return tensor;
}

/// The reads that fill a part of CPU memory.
void CheckpointReader::State::add_tasks(std::vector<ReadTask>& tasks, const StatePart& part) {
  const PlannedTensor& tensor = find(part);
  require(tensor.dtype == part.data.scalar_type(), "tensor '{}' is {} in {}, but {} is wanted", part.name,
          c10::toString(tensor.dtype), path(kPlanFile), c10::toString(part.data.scalar_type()));
  const Box wanted = {part.offsets, part.data.sizes().vec()};
  const int64_t item = part.data.element_size();
  char* memory = static_cast<char*>(part.data.mutable_data_ptr());
  int64_t covered = 0;
  for (const PlannedChunk& chunk : tensor.chunks) {
    const auto both = intersect(wanted, chunk.box);
    if (!both) {
      continue;
    }
    covered += both->numel();
    const std::vector<int64_t> stored = contiguous_strides(chunk.box.sizes);
    const CopyLoops copy = copy_loops(both->sizes, part.data.strides(), stored, item);
    char* to = memory + offset_of(*both, wanted.offsets, part.data.strides()) * item;
    const int64_t from = static_cast<int64_t>(chunk.begin) + offset_of(*both, chunk.box.offsets, stored) * item;
    for (CopyPiece& piece : cut_copy(copy, kTask)) {
      tasks.push_back({&file(chunk.file), std::move(piece.copy), to + piece.to, from + piece.from});
    }
  }
  require(covered == wanted.numel(), "tensor '{}': {} of the {} elements of {} are in {}", part.name, covered,
          wanted.numel(), wanted.text(), path(kPlanFile));
}

CheckpointReader CheckpointReader::open(const std::string& folder) {
  auto state = std::make_unique<State>();
  state->folder = folder;
  const std::string plan = state->path(kPlanFile);
  require(status_of(plan).has_value(), "{} is missing: {} is not a whole checkpoint", plan, folder);
  state->plan = parse_plan(read_text_file(plan), plan);
  check_tiling(state->plan, plan);
  for (const auto& [name, file] : state->plan.files) {
    const std::string path = state->path(name);
    const auto status = status_of(path);
    require(status.has_value(), "{} is missing, which {} lists", path, kPlanFile);
    require(S_ISREG(status->st_mode), "{} is not a regular file", path);
    require(static_cast<uint64_t>(status->st_size) == file.bytes, "{}: {}: it has {} bytes, {} were written", path,
            static_cast<uint64_t>(status->st_size) < file.bytes ? "truncated" : "corrupt", status->st_size, file.bytes);
  }
  return CheckpointReader(std::move(state));
}

CheckpointReader::CheckpointReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

std::optional<std::string> CheckpointReader::verify(int rank, int world_size) const {
  std::vector<const std::pair<const std::string, FileSum>*> mine;
  int index = 0;
  for (const auto& item : state_->plan.files) {
    if (index++ % world_size == rank) {
      mine.push_back(&item);
    }
  }
  try {
    run_tasks(mine.size(), reading_threads(), [&](size_t i) {
      const auto& [name, file] = *mine[i];
      const FileSum found = sum_file(state_->path(name));
      require(found.bytes == file.bytes && found.checksum == file.checksum,
              "{}: corrupt: {} bytes with checksum {}, {} with {} were written", state_->path(name), found.bytes,
              found.checksum, file.bytes, file.checksum);
    });
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

namespace {

/// Where a part cannot be filled in place: CPU memory of the stored type, and the part that it is for.
struct Detour {
  at::Tensor memory;
  const StatePart* part;
};

bool converts(at::ScalarType from, at::ScalarType to) {
  return from == to || (at::isFloatingType(from) && at::isFloatingType(to));
}

}  // namespace

void CheckpointReader::read(const std::vector<StatePart>& parts) const {
  const at::NoGradGuard no_gradients;
  std::vector<ReadTask> tasks;
  std::vector<Detour> detours;
  for (const StatePart& part : parts) {
    if (part.data.defined() && !part.data.device().is_cpu()) {
      detours.push_back({at::empty(part.data.sizes(), part.data.options().device(at::kCPU)), &part});
      state_->add_tasks(tasks, {part.name, part.global_shape, part.offsets, detours.back().memory});
    } else {
      state_->add_tasks(tasks, part);
    }
  }
  run_tasks(tasks.size(), reading_threads(),
            [&](size_t i) { StridedRead(*tasks[i].file, tasks[i].copy).run(tasks[i].to, tasks[i].from); });
  for (const Detour& detour : detours) {
    detour.part->data.copy_(detour.memory);
  }
}

void CheckpointReader::read_converted(const std::vector<StatePart>& parts) const {
  const at::NoGradGuard no_gradients;
  for (const StatePart& part : parts) {  // one after another: the memory of one detour at a time
    const PlannedTensor& tensor = state_->find(part);
    const at::ScalarType wanted = part.data.scalar_type();
    require(converts(tensor.dtype, wanted), "tensor '{}' is {} in {}, which does not convert to {}", part.name,
            c10::toString(tensor.dtype), state_->path(kPlanFile), c10::toString(wanted));
    if (tensor.dtype == wanted) {
      read({part});
      continue;
    }
    const at::Tensor stored = at::empty(part.data.sizes(), at::TensorOptions().dtype(tensor.dtype));
    read({{part.name, part.global_shape, part.offsets, stored}});
    part.data.copy_(stored);
  }
}

at::Tensor CheckpointReader::read_whole(const std::string& name) const {
  const auto found = tensors().find(name);
  require(found != tensors().end(), "tensor '{}' is missing in {}", name, state_->path(kPlanFile));
  const PlannedTensor& tensor = found->second;
  at::Tensor whole = at::empty(tensor.shape, at::TensorOptions().dtype(tensor.dtype));
  read({{name, tensor.shape, std::vector<int64_t>(tensor.shape.size(), 0), whole}});
  return whole;
}

int64_t CheckpointReader::step() const {
  return state_->plan.step;
}
int64_t CheckpointReader::world_size() const {
  return state_->plan.world_size;
}
const std::string& CheckpointReader::state_json() const {
  return state_->plan.state_json;
}
bool CheckpointReader::has_object(const std::string& name) const {
  return state_->plan.files.contains("objects/" + name);
}
std::string CheckpointReader::object(const std::string& name) const {
  require(has_object(name), "object '{}' is missing in {}", name, state_->path(kPlanFile));
  return read_text_file(state_->path("objects/" + name));
}
bool CheckpointReader::contains(const std::string& name) const {
  return tensors().contains(name);
}
const std::map<std::string, PlannedTensor>& CheckpointReader::tensors() const {
  return state_->plan.tensors;
}
const std::string& CheckpointReader::folder() const {
  return state_->folder;
}

}  // namespace tetra
