#pragma once
// Which files a list of names and globs means.

#include <string>
#include <vector>

namespace tetra {

/// Expands `patterns` in the order given: file names, and globs with *, ?, [...] and ** (any depth of folders, not
/// following links to folders). A glob's matches are sorted by bytes; names starting with a dot match only a pattern
/// that does; a file named twice counts once. Throws Error, starting with `key`, for a file that is not there, a
/// folder, and a glob without a match.
std::vector<std::string> expand_files(const std::vector<std::string>& patterns, const std::string& key);

}  // namespace tetra
