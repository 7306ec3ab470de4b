// The official encoder as a process: reads JSON lines and answers each by one.
//
//	{"file": PATH}   loads a tokenizer.json; the answer is {"version": ...}
//	{"texts": [...]} encodes them one after the other, with special tokens; the
//	                 answer has the nanoseconds that each took and its ids
//
// Needs the npm package tokenizers, HuggingFace's own binding of the Rust library.
const fs = require('fs');
const readline = require('readline');
const zlib = require('zlib');
const { Tokenizer } = require('tokenizers');

let tokenizer;

async function answer({ file, texts }) {
	if (file !== undefined) {
		const data = fs.readFileSync(file);
		tokenizer = Tokenizer.fromString((file.endsWith('.gz') ? zlib.gunzipSync(data) : data).toString());
		return { version: require('tokenizers/package.json').version };
	}
	const ns = [];
	const ids = [];
	for (const text of texts) {
		const start = process.hrtime.bigint();
		const encoding = await tokenizer.encode(text, null, { addSpecialTokens: true });
		ns.push(Number(process.hrtime.bigint() - start));
		ids.push(encoding.getIds());
	}
	return { ns, ids };
}

(async () => {
	for await (const line of readline.createInterface({ input: process.stdin })) {
		console.log(JSON.stringify(await answer(JSON.parse(line))));
	}
})();
