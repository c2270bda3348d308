// Package once has a named task done to its end once, by one of several programs.
//
// It promises: a task has one result, which is kept, and everybody who asks for the task gets it.
// One program at a time owns the task and does it; when its proc dies, or its lease ends, the next
// who asked does it again from the start. What a former owner publishes then is refused.
//
// It assumes that the task's directory is kept by named. What the task changes elsewhere before its
// result is published may be done more than once: it has a fence, with which writes of a former
// owner are refused too (sigma.WithFence, FenceAtEpoch).
//
// It costs: a read if the result is there; else a lease, three puts, two reads, the revocation:
// about eight round trips.
package once
