// Command grep writes the lines of its input that match a regular expression, sorted, as often as
// they are there: a MapReduce job of a few lines.
//
//	sigma mr run --input /s3/texts --output /s3/found ./grep 'f[aeiou]sh'
package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"

	"sigmaos.dev/apps/mr"
)

func main() {
	pattern := ""
	if args := mr.Args(); len(args) > 0 {
		pattern = args[0]
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	matching := func(_ string, text []byte, out *mr.Emitter) error {
		for line := range bytes.Lines(text) {
			if line = bytes.TrimSuffix(line, []byte("\n")); re.Match(line) {
				out.Count(line, 1)
			}
		}
		return nil
	}
	os.Exit(mr.Run(mr.Mapper{Map: matching}, mr.Each))
}
