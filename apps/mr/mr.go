// Package mr is MapReduce on sigmaOS (000 §5.1, 001 §3.1 and Fig 2), with one job built in:
// counting words.
//
// A job is three kinds of procs. A coordinator lists the input and cuts it into bins of about equal
// work; it spawns one mapper proc per bin and one reducer proc per part of the output, waits for
// them and spawns again those that fail. A mapper counts the words of its bin, splits the counts by
// hash among the reducers, writes one file for each into its machine's scratch storage (ux) and
// then publishes all of them at once by one symlink in the realm's tree. Reducers start as soon as
// no map waits for a place; they watch the directory of those links, merge what appears, and write
// their part of the output, sorted.
//
// A word is a maximal run of the bytes A-Z and a-z inside one file, case kept, of any length.
//
// Promises: each bin's output is used exactly once, whatever is killed and however often it is
// repeated, because the link of a map is made once and every attempt of a map gives the same counts
// (as long as nobody changes the input). Everything that a coordinator knows is in the realm below
// /mr/JOB, so a new coordinator of the same job goes on where the old one ended, adopts the mappers
// that still run and repeats no finished map. Memory of mappers and reducers is bounded by what
// they were given, whatever the number of words.
//
// Reducers wait for maps and both need memory to be admitted, so reducers could keep a map out
// forever. They cannot: reducers are spawned only when every map has started, and if a map that has
// to be repeated waits for a place, the reducers are killed and come back later (core.go). So
// whenever a map waits, nothing that waits for it holds memory.
//
// The package uses sigma.Namespace and sigma.Procs, nothing of the kernel. Users: cmd/mr (the
// program of all three roles), cmd/sigma (Run), bench.
package mr

import (
	"fmt"
	"strconv"

	"sigmaos.dev/sigma"
)

// Limits. The first three keep one job from filling the realm's tree or a proc's memory.
const (
	MapsMax     = 10_000
	ReducesMax  = 256
	FilesMax    = 500_000 // what a coordinator can list in its memory (some 150 bytes each)
	AttemptsMax = 5       // of one map or reduce, before the job fails

	// MemoryDefault is what a mapper or reducer is given first. One that exceeds it (a word of many
	// megabytes) is repeated with twice as much, up to MemoryMost.
	MemoryDefault     = 128 * sigma.MiB
	MemoryMost        = 2 * sigma.GiB
	MemoryCoordinator = 256 * sigma.MiB
)

// Job is what is to be counted and where the counts go.
type Job struct {
	Input   string // a file or a directory with all below it, an absolute path of the realm
	Output  string // a directory that is missing or empty
	Maps    int    // mapper procs; 0 = by size and cores
	Reduces int    // reducer procs, and files of output; 0 = by cores
	Cores   int    // that the defaults assume; 0 = 1
	Program string // realm path of the program of cmd/mr
}

// Check says what is wrong with the job.
func (j *Job) Check() error {
	const op = "mr.Job.Check"
	for _, p := range []string{j.Input, j.Output, j.Program} {
		if _, err := sigma.ParsePath(p); err != nil {
			return sigma.Wrap(op, p, err)
		}
	}
	switch {
	case j.Maps < 0 || j.Maps > MapsMax:
		return sigma.Errorf(op, sigma.KindInvalid, "%d maps, 1 to %d are allowed", j.Maps, MapsMax)
	case j.Reduces < 0 || j.Reduces > ReducesMax:
		return sigma.Errorf(op, sigma.KindInvalid, "%d reduces, 1 to %d are allowed", j.Reduces, ReducesMax)
	}
	return nil
}

func (j *Job) encode() []byte {
	return encodeRecord("job", "wordcount", "input", j.Input, "output", j.Output, "maps", j.Maps, "reduces", j.Reduces,
		"cores", j.Cores, "program", j.Program)
}

func decodeJob(data []byte) Job {
	r := parseRecord(data)
	return Job{Input: r.text("input"), Output: r.text("output"), Maps: int(r.number("maps")),
		Reduces: int(r.number("reduces")),
		Cores:   int(r.number("cores")), Program: r.text("program")}
}

// jobDir is the directory of a job's state, /mr/JOB. Its files, all text:
//
//	job          what is to be done (Job)          plan      how it was cut up; made when all bins are there
//	bins/m-00007 the splits of map 7               out/m-00007 -> /ux/MACHINE/mr/JOB/m-00007-ATTEMPT, made by the mapper when it has finished
//	done/r-00003 made when reducer 3 has finished  maps_run  how many mapper procs were spawned, ever
//	progress     for those who watch               result    how the job ended
type jobDir string

func (d jobDir) file(name string) string { return string(d) + "/" + name }
func (d jobDir) bin(i int) string        { return fmt.Sprintf("%s/bins/%s", d, mapName(i)) }
func (d jobDir) out(i int) string        { return fmt.Sprintf("%s/out/%s", d, mapName(i)) }
func (d jobDir) done(i int) string       { return fmt.Sprintf("%s/done/%s", d, reduceName(i)) }

func mapName(i int) string    { return fmt.Sprintf("m-%05d", i) }
func reduceName(i int) string { return fmt.Sprintf("r-%05d", i) }
func partName(i int) string   { return fmt.Sprintf("part-%05d", i) }

// taskIndex reads what mapName and reduceName print.
func taskIndex(name, prefix string, n int) (int, bool) {
	if len(name) < 3 || name[:2] != prefix+"-" {
		return 0, false
	}
	i, err := strconv.Atoi(name[2:])
	return i, err == nil && i >= 0 && i < n
}

// oneCore is the environment of a job's procs. Each is busy on one core at most and there are more
// of them than cores; with one thread for Go code a mapper of small files needs a third less CPU,
// because its goroutines do not wake each other across cores.
var oneCore = []string{"GOMAXPROCS=1"}

// Roles of the program, its first argument.
const (
	RoleCoordinate = "coord"
	RoleMap        = "map"
	RoleReduce     = "reduce"
)
