#include "train/text/files.h"

#include <fnmatch.h>

#include <filesystem>
#include <set>

#include "kernels/error.h"

namespace tetra {
namespace {

namespace fs = std::filesystem;

bool is_glob(const std::string& text) {
  return text.find_first_of("*?[") != std::string::npos;
}

/// "a/**/*.txt" -> a, **, *.txt. A last ** means every file below.
std::vector<std::string> split(const std::string& pattern) {
  std::vector<std::string> parts;
  for (const auto& part : fs::path(pattern).relative_path()) {
    if (!part.empty()) {
      parts.push_back(part.string());
    }
  }
  if (!parts.empty() && parts.back() == "**") {
    parts.emplace_back("*");
  }
  return parts;
}

class Expansion {
 public:
  Expansion(const std::string& key, std::vector<std::string> parts) : key_(key), parts_(std::move(parts)) {}

  /// Adds the files below `base` that parts_[index...] match.
  void walk(const fs::path& base, size_t index) {
    if (index == parts_.size()) {
      if (fs::is_regular_file(base)) {
        found_.insert(base.string());
      }
      return;
    }
    const std::string& part = parts_[index];
    if (!is_glob(part)) {
      if (fs::exists(base / part)) {
        walk(base / part, index + 1);
      }
      return;
    }
    if (part == "**") {
      walk(base, index + 1);
    }
    if (base.empty() || fs::is_directory(base)) {
      enter(base, index);
    }
  }

  const std::set<std::string>& found() const { return found_; }

 private:
  void enter(const fs::path& base, size_t index) {
    const std::string& part = parts_[index];
    std::error_code error;
    fs::directory_iterator items(base.empty() ? fs::path(".") : base, error);
    require(!error, "{}: cannot list folder {}: {}", key_, base.string(), error.message());
    for (const auto& item : items) {
      const auto name = item.path().filename();
      if (part == "**") {
        if (item.is_directory() && !item.is_symlink() && name.string()[0] != '.') {
          walk(base / name, index);
        }
      } else if (::fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) == 0) {
        walk(base / name, index + 1);
      }
    }
  }

  const std::string& key_;
  std::vector<std::string> parts_;
  std::set<std::string> found_;
};

std::vector<std::string> expand_one(const std::string& pattern, const std::string& key) {
  if (fs::exists(pattern)) {  // also a file whose name looks like a glob
    require(!fs::is_directory(pattern), "{}: {} is a folder; use {}/** for all files in it", key, pattern, pattern);
    require(fs::is_regular_file(pattern), "{}: {} is not a regular file", key, pattern);
    return {pattern};
  }
  require(is_glob(pattern), "{}: file {} does not exist", key, pattern);
  Expansion expansion(key, split(pattern));
  expansion.walk(fs::path(pattern).root_path(), 0);
  require(!expansion.found().empty(), "{}: no file matches {}", key, pattern);
  return {expansion.found().begin(), expansion.found().end()};
}

}  // namespace

std::vector<std::string> expand_files(const std::vector<std::string>& patterns, const std::string& key) {
  require(!patterns.empty(), "{}: no files are given", key);
  std::vector<std::string> files;
  std::set<std::string> seen;
  for (const auto& pattern : patterns) {
    for (const auto& file : expand_one(pattern, key)) {
      if (seen.insert(file).second) {
        files.push_back(file);
      }
    }
  }
  return files;
}

}  // namespace tetra
