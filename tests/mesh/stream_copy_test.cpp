#include "mesh/backend/stream_copy.h"

#include <vector>

#include <gtest/gtest.h>

namespace tetra {
namespace {

TEST(StreamCopy, CopiesAnyLengthFromAnyPlaceAndNothingElse) {
  std::vector<unsigned char> from(5000);
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<unsigned char>(i * 7 + 1);
  }
  for (size_t length : {0, 1, 63, 64, 65, 127, 128, 129, 200, 4096, 4500}) {
    for (size_t source : {0, 1, 17}) {
      for (size_t target : {0, 1, 15, 63}) {
        std::vector<unsigned char> to(from.size(), 0);
        stream_copy(to.data() + target, from.data() + source, static_cast<int64_t>(length));
        finish_streaming();
        for (size_t i = 0; i < to.size(); ++i) {
          const bool inside = i >= target && i < target + length;
          ASSERT_EQ(to[i], inside ? from[i - target + source] : 0) << length << " " << source << " " << target;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tetra
