#include "mesh/backend/call_site.h"

namespace tetra {
namespace {

thread_local CallSite current_call;

}  // namespace

const CallSite& CallSite::current() {
  return current_call;
}

CallSiteScope::CallSiteScope(const CallSite& call) : previous_(current_call) {
  current_call = call;
}

CallSiteScope::~CallSiteScope() {
  current_call = previous_;
}

}  // namespace tetra
