// Command idle does nothing until it is killed.
package main

import "time"

func main() { time.Sleep(time.Hour) }
