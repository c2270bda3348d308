package record

import "time"

// Bounds of what one call carries.
const (
	// DataMax is the size of a task's data, and of a result, in bytes. What is larger is put into a
	// file, whose path is the data.
	DataMax = 32 << 10
	// BatchMax is how many tasks one call concerns.
	BatchMax = 4096

	KeyMax    = 256
	FailedMax = 1024
	ReplyMax  = 1 << 20 // bytes of data in an answer
)

// Task is what is submitted.
type Task struct {
	// Key, if it is not "", is the task's name: another of the same key is not entered as long as
	// the queue knows the first, which it does until the outcome is forgotten.
	Key  string
	Data []byte
}

// Hold identifies one attempt at a task. A task has one valid hold at most: the attempt grows each
// time it is given out.
type Hold struct {
	ID      uint64
	Attempt uint64
}

// Held is a task that was given to a worker.
type Held struct {
	Hold
	Task
}

// Dead is a task that was tried as often as it may be, with why its last attempt failed.
type Dead struct {
	Held
	Failed string
}

// Result ends a hold.
type Result struct {
	Hold
	Data []byte
	// Failed, if it is not "", says why the attempt failed. The task is tried again, up to
	// Config.Attempts times, and is dead after that.
	Failed string
}

// Outcome is how a task ended. Failed is not "" if it is dead.
type Outcome struct {
	Seq uint64 // in order of endings
	Key string
	Result
}

// Status counts.
type Status struct {
	Waiting int `json:"waiting"`
	Held    int `json:"held"`
	Done    int `json:"done"` // outcomes that are kept
	Dead    int `json:"dead"`
	Workers int `json:"workers"` // that wait for a task
	Bytes   int `json:"bytes"`   // of Config.Bytes
	// Submitted counts the tasks ever entered.
	Submitted uint64 `json:"submitted"`
	// Oldest is how long the first waiting task has waited, as far as this server knows.
	Oldest time.Duration `json:"oldest_ns"`
}
