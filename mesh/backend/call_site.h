#pragma once
// Which collective call is being posted on this thread, so that a backend's errors can name it. c10d's interface has no
// place for that.

#include <string_view>

namespace tetra {

struct CallSite {
  std::string_view operation;  // "all_reduce"
  std::string_view site;       // "row_parallel.forward"
  std::string_view group;  // "tp"; groups with the same ranks share a backend, so the backend's own name will not do

  /// The innermost call on this thread; empty texts outside of any.
  static const CallSite& current();
};

/// Makes `call` the current one until the end of the scope.
class CallSiteScope {
 public:
  explicit CallSiteScope(const CallSite& call);
  ~CallSiteScope();
  CallSiteScope(const CallSiteScope&) = delete;
  CallSiteScope& operator=(const CallSiteScope&) = delete;

 private:
  CallSite previous_;
};

}  // namespace tetra
