// One turn through @ai-sdk/openai-compatible: text, reasoning and a tool call, told as JSON.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { streamText, tool, jsonSchema } from 'ai';

const { url, key, model, forced } = JSON.parse(process.argv[2]);
const provider = createOpenAICompatible({ name: 'box', baseURL: `${url}/v1`, apiKey: key });
const read = tool({
  description: 'Read a file',
  inputSchema: jsonSchema({
    type: 'object',
    properties: { path: { type: 'string', maxLength: 8 } },
    required: ['path'],
    additionalProperties: false,
  }),
});
const told = { text: '', reasoning: '', calls: [], errors: [], finish: null, usage: null };
const answer = streamText({
  model: provider(model),
  prompt: 'Read a.py',
  maxOutputTokens: 64,
  maxRetries: 0,
  onError: () => {},
  ...(forced ? { tools: { read }, toolChoice: { type: 'tool', toolName: 'read' } } : {}),
});
for await (const part of answer.fullStream) {
  if (part.type === 'text-delta') told.text += part.text;
  if (part.type === 'reasoning-delta') told.reasoning += part.text;
  if (part.type === 'tool-call') told.calls.push({ name: part.toolName, input: part.input });
  if (part.type === 'error') told.errors.push(String(part.error));
  if (part.type === 'finish') Object.assign(told, { finish: part.finishReason, usage: part.totalUsage });
}
console.log(JSON.stringify(told));
