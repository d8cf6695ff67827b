#include "tests/checkpoint/parts.h"

#include "kernels/error.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

namespace tetra::testing {
namespace {

int64_t draw(Random& random, int64_t below) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(below));
}

at::Tensor box_view(const at::Tensor& tensor, const Box& box) {
  at::Tensor view = tensor;
  for (size_t i = 0; i < box.sizes.size(); ++i) {
    view = view.narrow(static_cast<int64_t>(i), box.offsets[i], box.sizes[i]);
  }
  return view;
}

/// Memory for a box: contiguous, or columns of a wider tensor, or transposed.
at::Tensor memory_for(const Box& box, at::ScalarType dtype, Random& random) {
  const auto options = at::TensorOptions().dtype(dtype);
  const auto dims = static_cast<int64_t>(box.sizes.size());
  const int64_t kind = dims == 0 ? 0 : draw(random, 3);
  std::vector<int64_t> sizes = box.sizes;
  if (kind == 1) {
    sizes.back() += 3;
    return at::zeros(sizes, options).narrow(dims - 1, 2, box.sizes.back());
  }
  if (kind == 2 && dims > 1) {
    std::swap(sizes[0], sizes[1]);
    return at::zeros(sizes, options).transpose(0, 1);
  }
  return at::zeros(sizes, options);
}

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  return {static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()};
}

}  // namespace

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

at::Tensor patterned(const std::vector<int64_t>& shape, at::ScalarType dtype, uint64_t seed) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(dtype));
  Random random(seed);
  char* data = static_cast<char*>(tensor.mutable_data_ptr());
  for (size_t at = 0; at < tensor.nbytes(); at += 8) {
    const uint64_t value = random();
    std::memcpy(data + at, &value, std::min<size_t>(8, tensor.nbytes() - at));
  }
  return tensor;
}

Tensors random_tensors(Random& random) {
  const std::vector<std::vector<int64_t>> shapes = {{},      {1},      {7},       {1000},     {5, 3}, {40, 33},
                                                    {1, 17}, {129, 1}, {4, 3, 5}, {9, 16, 2}, {0},    {3, 0, 2}};
  const std::vector<at::ScalarType> types = {at::kBFloat16, at::kFloat, at::kDouble, at::kLong, at::kByte};
  Tensors tensors;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const at::ScalarType dtype = types[static_cast<size_t>(draw(random, 5))];
    tensors["weights/t" + std::to_string(i)] = patterned(shapes[i], dtype, random());
  }
  return tensors;
}

std::vector<Box> random_tiling(const std::vector<int64_t>& shape, Random& random) {
  std::vector<Box> boxes = {{std::vector<int64_t>(shape.size(), 0), shape}};
  for (int64_t cuts = shape.empty() ? 0 : draw(random, 6); cuts > 0; --cuts) {
    Box& box = boxes[static_cast<size_t>(draw(random, static_cast<int64_t>(boxes.size())))];
    const auto dim = static_cast<size_t>(draw(random, static_cast<int64_t>(shape.size())));
    const int64_t first = draw(random, box.sizes[dim] + 1);
    Box rest = box;
    box.sizes[dim] = first;
    rest.offsets[dim] += first;
    rest.sizes[dim] -= first;
    boxes.push_back(rest);
  }
  std::sort(boxes.begin(), boxes.end(),
            [](const Box& a, const Box& b) { return std::pair(a.offsets, a.sizes) < std::pair(b.offsets, b.sizes); });
  const auto same = [](const Box& a, const Box& b) { return a.offsets == b.offsets && a.sizes == b.sizes; };
  boxes.erase(std::unique(boxes.begin(), boxes.end(), same), boxes.end());
  return boxes;
}

std::vector<std::vector<StatePart>> random_division(const Tensors& tensors, int ranks, bool zeros, Random& random) {
  std::vector<std::vector<StatePart>> states(static_cast<size_t>(ranks));
  for (const auto& [name, tensor] : tensors) {
    for (const Box& box : random_tiling(tensor.sizes().vec(), random)) {
      const at::Tensor memory = memory_for(box, tensor.scalar_type(), random);
      if (!zeros) {
        memory.copy_(box_view(tensor, box));
      }
      states[static_cast<size_t>(draw(random, ranks))].push_back({name, tensor.sizes().vec(), box.offsets, memory});
    }
  }
  return states;
}

::testing::AssertionResult parts_equal(const std::vector<StatePart>& parts, const Tensors& tensors) {
  for (const StatePart& part : parts) {
    const Box box = {part.offsets, part.data.sizes().vec()};
    if (bytes_of(part.data) != bytes_of(box_view(tensors.at(part.name), box))) {
      return ::testing::AssertionFailure() << part.name << " " << box.text();
    }
  }
  return ::testing::AssertionSuccess();
}

std::vector<StatePart> whole_parts(const Tensors& tensors) {
  std::vector<StatePart> parts;
  for (const auto& [name, tensor] : tensors) {
    parts.push_back({name, tensor.sizes().vec(), std::vector<int64_t>(static_cast<size_t>(tensor.dim()), 0), tensor});
  }
  return parts;
}

}  // namespace tetra::testing
