// The attempts: G(asset, attempt) begins one, and each line after it is an act of it: A(name, protections to take off in the control, errnos that prove that nothing was
// in the way, expression). Acts are one attempt if they go for the same by the same way, so that a list of numbers does not count as many.
//
// An act succeeds if the expression is not -1, or errno is one of those. R(0) means that only the former counts. Where the control takes off several protections, each of
// them alone would have stopped it, or the kernel's own demand for a capability stands behind the first. NONE has no control: its attempt is made but not counted.
#include "files.h"
#include "processes.h"
#include "sockets.h"
#include "kernel.h"
#include "siblings.h"
#include "escapes.h"
