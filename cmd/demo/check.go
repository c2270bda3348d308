package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

// The independent count shares no code with the one it checks: coreutils find the words, sort them
// and count equal ones. A newline is put after each file, so that a word never goes on in the next
// file.
const pipeline = `LC_ALL=C tr -cs 'A-Za-z' '\n' | LC_ALL=C sort | LC_ALL=C uniq -c`

// countWithCoreutils counts the words of all regular files below dir, in one pipeline per core.
func countWithCoreutils(ctx context.Context, dir string) (map[string]uint64, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	n := max(runtime.NumCPU(), 1)
	counts, errs := make([]map[string]uint64, n), make([]error, n)
	var pipelines sync.WaitGroup
	for i := range n {
		pipelines.Go(func() {
			var mine []string
			for j := i; j < len(files); j += n {
				mine = append(mine, files[j])
			}
			counts[i], errs[i] = countPart(ctx, mine)
		})
	}
	pipelines.Wait()
	for _, more := range counts[1:] {
		for w, c := range more {
			counts[0][w] += c
		}
	}
	return counts[0], errors.Join(errs...)
}

func countPart(ctx context.Context, files []string) (map[string]uint64, error) {
	counts := map[string]uint64{}
	cmd := exec.CommandContext(ctx, "sh", "-c", pipeline)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return counts, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return counts, err
	}
	if err := cmd.Start(); err != nil {
		return counts, err
	}
	fed := make(chan error, 1)
	go func() { fed <- feed(in, files) }()
	lines := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := lines.ReadString('\n')
		if number, word, ok := strings.Cut(strings.TrimSpace(line),
			" "); ok { // a line without a word counts the empty one
			n, err := strconv.ParseUint(number, 10, 64)
			if err != nil {
				return counts, fmt.Errorf("uniq printed %.80q", line)
			}
			counts[word] += n
		}
		if err == io.EOF {
			break
		} else if err != nil {
			return counts, err
		}
	}
	return counts, errors.Join(<-fed, cmd.Wait())
}

func feed(in io.WriteCloser, files []string) error {
	defer in.Close()
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := in.Write(append(text, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// readCounts reads lines WORD<TAB>COUNT.
func readCounts(path string, counts map[string]uint64) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(data) {
		word, number, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), "\t")
		n, err := strconv.ParseUint(number, 10, 64)
		if _, twice := counts[word]; err != nil || twice {
			return fmt.Errorf("%s: unexpected line %.80q", filepath.Base(path), line)
		}
		counts[word] = n
	}
	return nil
}

// compare says where two counts differ.
func compare(got, want map[string]uint64) error {
	var diffs []string
	for w, n := range want {
		if got[w] != n {
			diffs = append(diffs, fmt.Sprintf("%.40q: sigmaOS counted %d, coreutils %d", w, got[w], n))
		}
	}
	for w, n := range got {
		if _, ok := want[w]; !ok {
			diffs = append(diffs, fmt.Sprintf("%.40q: sigmaOS counted %d, coreutils none", w, n))
		}
	}
	if len(diffs) == 0 {
		return nil
	}
	return fmt.Errorf("the counts of %d words differ:\n  %s", len(diffs), strings.Join(diffs[:min(10, len(diffs))],
		"\n  "))
}
