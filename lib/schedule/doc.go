// Package schedule does things at times, as cron does, by one of several programs.
//
// It promises: each time of an entry is fired by one program after another until it has been fired
// without an error, and by none after that: the one that leads fires, and records it in names. A
// leader that was deposed cannot record. What was missed while no program ran is treated as the
// entry says. Entries are a file, and a change of it is followed by a watch.
//
// A leader that dies between firing and recording leaves a time that is fired again. Firing.Key is
// the same then: an effect that is made under that key (a file that must be made, the key of a
// queue's task, a task of package once) is made exactly once.
//
// It assumes that the clocks of the machines, which decide what time it is, differ by less than the
// entries' intervals, and that the directory is kept by named.
//
// It costs: nothing between times but one watch; of each time one conditional put.
package schedule
