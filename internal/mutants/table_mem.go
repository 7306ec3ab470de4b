package main

var memMutants = table{breaks: "./index/internal/mem", rows: []mutant{
	{"pointers take no more than numbers", "PointerSize", "n += 8", "", "TestSize"},
	{"an array that was left is counted", "Append", "c.Add(-SliceSize(s))", "", "TestAppend"},
	{"an array is not counted", "Append", "c.Add(PointerSize(room * int(unsafe.Sizeof(v))))", "", "TestAppend"},
}}
