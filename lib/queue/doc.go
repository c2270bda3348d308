// Package queue is a work queue with leases, as its users see it: programs submit tasks, workers
// acquire them, extend their leases and end them with results, and readers follow the outcomes.
// Package server serves one.
//
// It promises: a task that Submit acknowledged is there after the death of any service, worker and
// machine, as long as the names are; Submit enters a task once, however often it is made again. A
// task is held by one attempt at a time. A result counts once, together with the end of its task,
// and only while the attempt holds the task: Done of a worker whose lease has ended is KindStale.
// Tasks are given out in order of arrival; one that is tried again keeps its place. Who waits for a
// task, a result or an outcome is told by an answer to its call; nothing polls.
//
// It does not promise that a task is done by one worker only: one that works on after its lease has
// ended runs beside the next attempt. What it does elsewhere must bear that, for instance by the
// attempt's number, which grows.
//
// It assumes that clocks run about equally fast, for the length of leases only. Data and results
// have up to 32 KiB each; what is larger is a file, whose path is the data.
//
// It costs: one call for a Submit, Acquire or Done of up to some hundred tasks, and a third to half
// of a put of up to 56 KiB to names for all calls that come meanwhile, which is about 1 ms of
// waiting. Extend, Status and Results write nothing. See docs/adr/0053-a-queue-is-served.md.
package queue
