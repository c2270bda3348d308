package mr

import (
	"bytes"
	"fmt"
	"path"
	"strconv"
	"strings"

	"sigmaos.dev/sigma"
)

// split is a piece of a file: the records that start in [from, to).
type split struct {
	path     string
	size     int64 // of the file, when it was listed
	from, to int64
}

// whole reports whether the split is its whole file, however large that is by now.
func (s *split) whole() bool { return s.from == 0 && s.to == s.size }

// Sizes of bins. A bin is large enough that starting a proc for it does not count and small enough
// that the last one does not keep the others waiting long.
const (
	fileCost   = 16 << 10 // opening and reading a file takes as long as counting this many bytes
	binLeast   = 4 << 20
	binMost    = 64 << 20
	pieceLeast = 64 << 10 // files are not cut into smaller pieces
	perCore    = 3        // bins per core, so that unequal bins even out
)

// cost is the work of a listing, in bytes.
func (l *listing) cost() int64 { return l.bytes + fileCost*int64(len(l.files)) }

// mapsFor chooses the number of maps.
func mapsFor(l *listing, cores int) int {
	size := min(max(l.cost()/int64(perCore*max(cores, 1)), binLeast), binMost)
	return int(min(max((l.cost()+size-1)/size, 1), MapsMax))
}

// reducesFor chooses the number of reduces.
func reducesFor(maps, cores int) int { return min(maps, max(cores, 1), ReducesMax) }

// cut divides the files into at most n bins of about equal work, in order. A large file is cut
// where a bin is full.
func cut(l *listing, n int) [][]split {
	var bins [][]split
	var bin []split
	left := l.cost() // of what is not in bins
	room := left / int64(n)
	closeBin := func() {
		bins, bin = append(bins, bin), nil
		room = left / int64(n-len(bins))
	}
	put := func(f inputFile, from, to int64) {
		bin = append(bin, split{f.path, f.size, from, to})
		room -= to - from + fileCost
		left -= to - from
	}
	for _, f := range l.files {
		for from := int64(0); ; {
			if room <= 0 && len(bin) > 0 && len(bins) < n-1 {
				closeBin()
			}
			rest, fits := f.size-from, room-fileCost
			if rest <= fits || len(bins) == n-1 {
				put(f, from, f.size)
				break
			}
			if fits >= pieceLeast && rest-fits >= pieceLeast {
				put(f, from, from+fits)
				from += fits
			} else if len(bin) == 0 || rest <= 2*fits { // rather a bin that is too large than a tiny piece
				put(f, from, f.size)
				break
			}
			closeBin()
		}
		left -= fileCost
	}
	if len(bin) > 0 {
		bins = append(bins, bin)
	}
	return bins
}

// encodeBin prints splits, one a line under the line of their directory: "dir PATH", "file SIZE
// NAME", "part SIZE FROM TO NAME", names quoted.
func encodeBin(splits []split) []byte {
	var b bytes.Buffer
	dir := ""
	for i, s := range splits {
		d, name := path.Split(s.path)
		if d != dir || i == 0 {
			fmt.Fprintf(&b, "dir %q\n", d)
			dir = d
		}
		if s.whole() {
			fmt.Fprintf(&b, "file %d %q\n", s.size, name)
		} else {
			fmt.Fprintf(&b, "part %d %d %d %q\n", s.size, s.from, s.to, name)
		}
	}
	return b.Bytes()
}

func decodeBin(data []byte) ([]split, error) {
	var splits []split
	dir, n := "", 0
	for line := range strings.Lines(string(data)) {
		n++
		kind, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		numbers := map[string]int{"dir": 0, "file": 1, "part": 3}[kind]
		var v [3]int64
		var err error
		for i := range numbers {
			var word string
			word, rest, _ = strings.Cut(rest, " ")
			if v[i], err = strconv.ParseInt(word, 10, 64); err != nil || v[i] < 0 {
				return nil, sigma.Errorf("mr.decodeBin", sigma.KindInvalid, "line %d of a bin: %.80q", n, line)
			}
		}
		name, err := strconv.Unquote(rest)
		if err != nil {
			return nil, sigma.Errorf("mr.decodeBin", sigma.KindInvalid, "line %d of a bin: %.80q", n, line)
		}
		switch kind {
		case "dir":
			dir = name
		case "file":
			splits = append(splits, split{dir + name, v[0], 0, v[0]})
		case "part":
			splits = append(splits, split{dir + name, v[0], v[1], v[2]})
		}
	}
	return splits, nil
}

// machineOf is where most of a bin is, if it is in one machine's scratch storage.
func machineOf(bin []split) sigma.MachineID {
	if len(bin) == 0 {
		return ""
	}
	names, err := sigma.ParsePath(bin[len(bin)/2].path)
	if err != nil || len(names) < 2 || names[0] != sigma.NameUX {
		return ""
	}
	return sigma.MachineID(names[1])
}
