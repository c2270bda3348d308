// Command sdkempty is an empty Go program, the floor of the bench sdk.
package main

func main() {}
