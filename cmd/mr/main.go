// Command mr counts words: it is the program of the jobs of `sigma mr wordcount`.
package main

import (
	"os"

	"sigmaos.dev/apps/mr"
)

func main() {
	os.Exit(mr.Run(mr.Mapper{Map: count, Between: mr.NotLetter}, mr.Sum))
}

func count(_ string, text []byte, out *mr.Emitter) error {
	for word := range mr.Words(text) {
		out.Count(word, 1)
	}
	return nil
}
