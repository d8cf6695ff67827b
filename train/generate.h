#pragma once
// Text continued by a trained model, on one process.

#include <cstdint>
#include <string>

namespace tetra {

struct GenerateOptions {
  std::string prompt;
  int64_t max_new_tokens = 100;
  double temperature = 0.8;  // 0: always the likeliest token
  int64_t top_k = 40;        // draw from so many likeliest tokens; 0: from all
  uint64_t seed = 1;
};

/// Reads the Hugging Face folder and returns the prompt with its continuation. Throws Error.
std::string generate_text(const std::string& model_folder, const GenerateOptions& options);

}  // namespace tetra
