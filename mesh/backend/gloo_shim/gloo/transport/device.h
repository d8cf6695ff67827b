#pragma once
// See README.md.

namespace gloo::transport {

class Device;
class UnboundBuffer;

}  // namespace gloo::transport
