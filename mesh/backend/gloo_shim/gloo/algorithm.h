#pragma once
// Nothing of it is needed; see README.md.
