// Package mr is MapReduce on sigmaOS (000 §5.1, 001 §3.1, Fig 2). A program that calls Run with
// a Mapper and a Reducer of its own is a job's program; `sigma mr run PROGRAM` runs it.
//
// A job has three kinds of procs, all of that one program. Three coordinators are registered with
// initd: one leads by election, the others stand by on other machines. The leader lists the input
// and cuts it into bins of about equal work; it spawns one mapper proc per bin and one reducer proc
// per part of the output, waits for them and spawns again those that fail. A mapper emits keys and
// values, which are divided among the reducers, writes one file for each into its machine's scratch
// storage (ux) and then publishes all of them at once by one symlink in the realm's tree. Reducers
// start as soon as no map waits for a place; they watch the directory of those links, merge what
// appears, and write their part of the output, sorted by key.
//
// Promises: each bin's output is used exactly once, whatever is killed and however often it is
// repeated, because the link of a map is made once and every attempt of a map gives the same keys
// (as long as the input does not change, and Map is deterministic). Everything that a leader knows
// is in the realm below /mr/JOB, so the next leader goes on where it ended, adopts the mappers that
// still run and repeats no finished map. Memory of mappers and reducers is bounded by what they
// were given, whatever the number of keys. When a job has ended its coordinators are registered no
// more; only its result is left, until Client.Follow has read it.
//
// Reducers wait for maps and both need memory to be admitted, so reducers could keep a map out
// forever. They cannot: reducers are spawned only when every map has started, and if a map that has
// to be repeated waits for a place, the reducers are killed and come back later (core.go). So
// whenever a map waits, nothing that waits for it holds memory.
//
// Users: cmd/mr (the program that counts words), examples/grep and examples/sort; cmd/sigma and
// bench (Client).
package mr

import (
	"bufio"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"sigmaos.dev/sigma"
)

// Limits. The first three keep one job from filling the realm's tree or a proc's memory.
const (
	MapsMax     = 10_000
	ReducesMax  = 256
	FilesMax    = 500_000 // what a coordinator can list in its memory (some 150 bytes each)
	AttemptsMax = 5       // of one map or reduce, before the job fails

	// MemoryDefault is what a mapper or reducer is given first. One that exceeds it (a record of
	// many megabytes) is repeated with twice as much, up to MemoryMost.
	MemoryDefault     = 128 * sigma.MiB
	MemoryMost        = 2 * sigma.GiB
	MemoryCoordinator = 192 * sigma.MiB

	// Coordinators of a job: one leads, and two machines may be lost at once.
	Coordinators = 3
)

// Mapper is the part of a job's program that reads input.
type Mapper struct {
	// Map emits the keys of some whole records of a file. The text is valid until Map returns. Map
	// gets each record once and must emit the same for it each time.
	Map func(path string, text []byte, out *Emitter) error
	// Between reports whether a byte stands between records and is part of none; nil = a newline
	// does, so that records are lines.
	Between func(c byte) bool
	// Ordered puts all keys of a part of the output before those of the next part. The leader looks
	// at a sample of the input for that.
	Ordered bool
}

// Values are what was emitted under one key, in the order of their bytes, each with how often it
// was. Equal ones may come in several pieces. They are valid until the next one.
type Values = iter.Seq2[[]byte, uint64]

// Reducer writes to a part of the output what becomes of one key. The key is valid until it
// returns. Keys of a part come in the order of their bytes. Errors of out need no check.
type Reducer func(key []byte, values Values, out *bufio.Writer) error

// Job describes a job. Its input is given by one of Input, Prefix and Manifest. Paths are absolute.
type Job struct {
	Input    string   `json:"input,omitempty"`    // a file or a directory with all below it
	Prefix   string   `json:"prefix,omitempty"`   // what the paths of all files begin with
	Manifest string   `json:"manifest,omitempty"` // a file with a path per line, each of a file or directory
	Output   string   `json:"output"`             // a directory that is missing or empty
	Maps     int      `json:"maps"`               // mapper procs; 0 = by size and cores
	Reduces  int      `json:"reduces"`            // reducer procs, and files of output; 0 = by cores
	Cores    int      `json:"cores"`              // that the defaults assume; 0 = 1
	Program  string   `json:"program"`            // realm path of a program that calls Run
	Args     []string `json:"args"`               // of the program (Args)

	keepOutput bool // the output directory was there before
}

// source is the path that the job's input is found by.
func (j *Job) source() *string {
	for _, p := range []*string{&j.Prefix, &j.Manifest} {
		if *p != "" {
			return p
		}
	}
	return &j.Input
}

// Check is an error if the job cannot be run.
func (j *Job) Check() error {
	const op = "mr.Job.Check"
	for _, p := range []string{strings.TrimSuffix(*j.source(), "/"), j.Output, j.Program} {
		if _, err := sigma.ParsePath(p); err != nil {
			return sigma.Wrap(op, p, err)
		}
	}
	switch {
	case j.Maps < 0 || j.Maps > MapsMax:
		return sigma.Errorf(op, sigma.KindInvalid, "%d maps, 1 to %d are allowed", j.Maps, MapsMax)
	case j.Reduces < 0 || j.Reduces > ReducesMax:
		return sigma.Errorf(op, sigma.KindInvalid, "%d reduces, 1 to %d are allowed", j.Reduces, ReducesMax)
	case j.Input != "" && j.Prefix+j.Manifest != "" || j.Prefix != "" && j.Manifest != "":
		return sigma.Errorf(op, sigma.KindInvalid, "the input is given twice")
	}
	return nil
}

func (j *Job) encode() []byte {
	return encodeRecord("input", j.Input, "prefix", j.Prefix, "manifest", j.Manifest, "output", j.Output,
		"maps", j.Maps, "reduces", j.Reduces, "cores", j.Cores, "program", j.Program,
		"args", strings.Join(j.Args, "\x00"), "argn", len(j.Args), "keep_output", j.keepOutput)
}

func decodeJob(data []byte) Job {
	r := parseRecord(data)
	j := Job{Input: r.text("input"), Prefix: r.text("prefix"), Manifest: r.text("manifest"), Output: r.text("output"),
		Maps: int(r.number("maps")), Reduces: int(r.number("reduces")), Cores: int(r.number("cores")),
		Program: r.text("program"), keepOutput: r.text("keep_output") == "true"}
	if r.number("argn") > 0 {
		j.Args = strings.Split(r.text("args"), "\x00")
	}
	return j
}

// jobsDir has a directory of each job's state, /mr/JOB. Its files, all text:
//
//	job           what is to be done (Job)
//	plan          how it was cut up; made when all bins are there
//	bins/m-00007  the splits of map 7
//	out/m-00007   -> /ux/MACHINE/mr/JOB/m-00007-ATTEMPT, made by the mapper when it has finished
//	cuts          the first keys of parts but the first, of an ordered job
//	done/r-00003  made when reducer 3 has finished
//	maps_run      how many mapper procs were spawned, ever
//	leader        which coordinator leads
//	leader.epoch  how many have
//	progress      how far the job is
//	result        how it ended
const jobsDir = "/mr/"

type jobDir string

func (d jobDir) file(name string) string { return string(d) + "/" + name }
func (d jobDir) bin(i int) string        { return fmt.Sprintf("%s/bins/%s", d, mapName(i)) }
func (d jobDir) out(i int) string        { return fmt.Sprintf("%s/out/%s", d, mapName(i)) }
func (d jobDir) done(i int) string       { return fmt.Sprintf("%s/done/%s", d, reduceName(i)) }

// registration is the name under which initd has coordinator i.
func (d jobDir) registration(i int) string {
	return fmt.Sprintf("mr-%s-%d", strings.TrimPrefix(string(d), jobsDir), i)
}

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

// arguments are those of a proc of the job, which parseArgs reads.
func arguments(role string, dir jobDir, index int, memory sigma.Bytes, job *Job) []string {
	return append([]string{role, string(dir), strconv.Itoa(index), strconv.FormatUint(uint64(memory), 10)}, job.Args...)
}
