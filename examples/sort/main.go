// Command sort sorts the lines of its input by their bytes: the parts of the output, one after the
// other, are in order. It is a MapReduce job whose keys are the lines.
//
//	sigma mr run --input /s3/texts --output /s3/sorted ./sort
package main

import (
	"bytes"
	"os"

	"sigmaos.dev/apps/mr"
)

func main() {
	os.Exit(mr.Run(mr.Mapper{Map: lines, Ordered: true}, mr.Each))
}

func lines(_ string, text []byte, out *mr.Emitter) error {
	for line := range bytes.Lines(text) {
		out.Count(bytes.TrimSuffix(line, []byte("\n")), 1)
	}
	return nil
}
